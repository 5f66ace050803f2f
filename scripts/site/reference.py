"""The reference: every public name from its source, and one page of options from the command line's own description.

Nothing here is written by hand, so nothing can fall behind the code.
"""

from __future__ import annotations

import inspect
from typing import Any

from mkdocs.structure.files import File, Files

import rankfall

MODULES = {"masks": "Masks", "norms": "Norms"}


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Called by mkdocs with the pages that it found; adds the ones made here."""
    pages = {
        "reference/index.md": names_page(),
        "reference/cli.md": options_page(),
        **{f"reference/{name}.md": module_page(name) for name in MODULES},
    }
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def names_page() -> str:
    """Every public function and class, with annotations, docstrings and members."""
    parts = [
        "# Reference\n",
        "What `import rankfall` gives, from the source itself; [one page](../api.md) shows each with an example.",
        "What is not here is internal and may move. [Masks](masks.md), [norms](norms.md) and",
        "[the options of every command](cli.md) have pages of their own. Axes in annotations: n tokens, d their",
        "width, h heads, r their rank.\n",
    ]
    for module, names in rankfall._PLACES.items():
        for name in names:
            options = (
                "      show_root_heading: false\n      show_root_toc_entry: false\n      inherited_members: true\n"
            )
            parts.append(f"## `rankfall.{name}`\n\n::: {module}.{name}\n    options:\n{options}")
    for name in rankfall._MEASURES:
        measure = getattr(rankfall, name)
        parts.append(f"## `rankfall.{name}`\n\n`{name}(tokens)` of tokens (..., n, d): {measure.definition}.\n")
    return "\n".join(parts)


def module_page(name: str) -> str:
    """The public classes and functions of a module that is public as a whole."""
    module = getattr(rankfall, name)
    own = [
        (public, thing)
        for public, thing in sorted(vars(module).items())
        if not public.startswith("_") and getattr(thing, "__module__", "").startswith(f"rankfall.{name}")
    ]
    parts = [f"# {MODULES[name]}\n", f"`rankfall.{name}`: {str(module.__doc__).strip()}\n"]
    for public, thing in own:
        if (inspect.isclass(thing) or inspect.isfunction(thing)) and thing.__doc__:
            options = "      show_root_heading: false\n      show_root_toc_entry: false\n"
            where = f"{thing.__module__}.{thing.__qualname__}"
            parts.append(f"## `rankfall.{name}.{public}`\n\n::: {where}\n    options:\n{options}")
    return "\n".join(parts)


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
    # A spelling such as `name[:A][:B]` is no link.
    meaning = (getattr(option, "help", None) or "").replace("|", "\\|").replace("[", "\\[")
    return f"| {names} | {'required' if option.required else default} | {meaning} |"
