"""The reference: one page per room from its source, and one page of options from the command line's own description.

Nothing here is written by hand, so nothing can fall behind the code. Modules are parsed, not imported.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

SOURCE = Path(__file__).parents[2] / "src" / "rankfall"
# The command line's own page is made from its options instead.
WITHOUT_PAGE = ("cli",)


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Called by mkdocs with the pages that it found; adds the ones made here."""
    pages = {f"reference/{room.name}.md": room_page(room) for room in rooms()}
    pages["reference/index.md"] = index_page()
    pages["reference/cli.md"] = options_page()
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def rooms() -> list[Path]:
    """The packages directly under rankfall that have a page."""
    return sorted(path.parent for path in SOURCE.glob("*/__init__.py") if path.parent.name not in WITHOUT_PAGE)


def index_page() -> str:
    """What each room is for, from its own docstring."""
    rows = [f"| [`{room.name}`]({room.name}.md) | {_summary(room / '__init__.py')} |" for room in rooms()]
    return "\n".join(
        [
            "# Reference\n",
            "One page per room of the package, public names only. A room imports only from rooms above it; the",
            "order is in `tests/test_layering.py`. Axes in annotations: `rankfall.shapes` has the legend. Wrong",
            "requests raise `rankfall.errors.RequestError`, a `ValueError` that says what was required, what came",
            "and what to do.\n",
            "| room | what it holds |\n|---|---|",
            *rows,
            "",
            "The options of every command are [on one page](cli.md).\n",
        ]
    )


def room_page(room: Path) -> str:
    """The names that a room exports, each a link, then every module with its public names."""
    parts = [f"# `rankfall.{room.name}`\n", _summary(room / "__init__.py") + "\n"]
    modules = [path for path in sorted(room.rglob("*.py")) if not path.stem.startswith("_")]
    packages = [path for path in sorted(room.rglob("__init__.py")) if _own_names(path) or exported(path)]
    for package in packages:
        links = [f"[`{name}`][{target}]" for name, target in exported(package) if _documented(target)]
        if links:
            parts.append(f"`from {_module(package)} import` " + ", ".join(links) + "\n")
    for path in sorted([*modules, *(package for package in packages if _own_names(package))]):
        names = _own_names(path)
        if names:
            parts.append(f"::: {_module(path)}\n    options:\n      members: [{', '.join(names)}]\n")
    return "\n".join(parts)


def exported(package: Path) -> list[tuple[str, str]]:
    """The names in a package's `__all__`, each with the place where it is defined."""
    tree = ast.parse(package.read_text())
    origin: dict[str, str] = {}
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.ImportFrom):
            origin |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign) and any(getattr(t, "id", None) == "__all__" for t in node.targets):
            names = list(ast.literal_eval(node.value))
    return [(name, origin.get(name, f"{_module(package)}.{name}")) for name in names]


def _own_names(path: Path) -> list[str]:
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, (ast.FunctionDef, ast.ClassDef))
        and not node.name.startswith("_")
        and ast.get_docstring(node)
    ]


def _documented(target: str) -> bool:
    module, _, name = target.rpartition(".")
    path = SOURCE.parent.joinpath(*module.split("."))
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    return path.exists() and name in _own_names(path)


def _module(path: Path) -> str:
    parts = path.relative_to(SOURCE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _summary(path: Path) -> str:
    return (ast.get_docstring(ast.parse(path.read_text())) or "").partition("\n")[0]


def options_page() -> str:
    """Every verb with its arguments and options, as the command line itself describes them."""
    import typer.main

    from rankfall.catalogue import VERBS
    from rankfall.cli.main import app

    group: Any = typer.main.get_command(app)
    parts = [
        "# Options of every command\n",
        "As `rankfall VERB --help` shows them. Exit status: 0 done, 1 the check asked for does not hold, 2 the",
        "request was wrong; one line then says what was required, what came and what to do.\n",
    ]
    for verb in VERBS.names:
        command = group.commands[verb]
        rows = [_option_row(one) for one in command.params]
        parts += [
            f"## `rankfall {verb}`\n",
            f"{command.help}\n",
            f"[Guide](../guide/{verb}.md)\n",
            "| argument or option | default | meaning |\n|---|---|---|",
            *rows,
            "",
        ]
    return "\n".join(parts)


def _option_row(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *option.secondary_opts))
    if option.param_type_name == "argument":
        names = f"`{option.name.upper()}`"
    default = "" if option.default in (None, False, ()) or callable(option.default) else f"`{option.default}`"
    meaning = (getattr(option, "help", None) or "").replace("|", "\\|")
    return f"| {names} | {'required' if option.required else default} | {meaning} |"
