"""The rooms of the package in the order in which data flows: a room imports only from rooms above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import rankfall

ROOT = Path(rankfall.__file__).parent
ROOMS = (
    "__init__",
    "errors",
    "shapes",
    "provenance",
    "progress",
    "registry",
    "catalogue",
    "system",
    "destinations",
    "sources",
    "linalg",
    "masks",
    "norms",
    "mechanism",
    "measures",
    "theory",
    "constructions",
    "tasks",
    "dynamics",
    "equilibria",
    "store",
    "training",
    "planning",
    "models",
    "drawing",
    "figures",
    "report",
    "explorer",
    "api",
    "cli",
    "__main__",
)
HEAVY = ("matplotlib", "transformers", "duckdb", "ray", "pandas", "typer", "marimo", "triton")


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


@cache
def imports_of(path: Path, *, types: bool = True) -> list[tuple[int, str, str]]:
    """Line, module and name of every import, inside functions too; `types=False` leaves out those for annotations."""
    tree = ast.parse(path.read_text())
    annotations = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found = []
    for node in ast.walk(tree):
        if not types and id(node) in annotations:
            continue
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            found += [(node.lineno, node.module or "", alias.name) for alias in node.names]
    return found


FILES = sorted(ROOT.rglob("*.py"))
# These two name what lies below without importing it; the imports are for type checkers.
NAMING = ("__init__.py", "catalogue.py")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upwards(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in ROOMS, f"room {room} is not in the layout"
    for line, module, _ in imports_of(path, types=str(path.relative_to(ROOT)) not in NAMING):
        if module.partition(".")[0] == "rankfall":
            target = room_of(module)
            assert ROOMS.index(target) <= ROOMS.index(room), f"{path}:{line}: {room} imports from {target}"


def test_no_module_imports_itself_through_others() -> None:
    names = {".".join(("rankfall", *path.relative_to(ROOT).with_suffix("").parts)): path for path in FILES}
    names = {name.removesuffix(".__init__"): path for name, path in names.items()}
    graph = {
        name: {
            target for _, module, inner in imports_of(path, types=False) for target in (f"{module}.{inner}", module)
        }
        & (names.keys() - {name})
        for name, path in names.items()
    }
    # What no remaining module imports cannot be in a cycle: take it out until nothing changes.
    while True:
        imported = set().union(*graph.values()) if graph else set()
        free = {name for name in graph if name not in imported or not graph[name] & graph.keys()}
        if not free:
            break
        graph = {name: targets - free for name, targets in graph.items() if name not in free}
    assert graph == {}


def test_import_is_light() -> None:
    code = f"import sys, rankfall; print([name for name in {HEAVY!r} + ('torch',) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_needs_no_heavy_library() -> None:
    code = (
        "import sys, rankfall, torch;"
        "rankfall.attention(rankfall.Heads.random(1, 2, 1), torch.eye(2), mask='causal');"
        "rankfall.measure(torch.eye(2)); rankfall.norms.UnitNorm();"
        f"print([name for name in {HEAVY!r} if name in sys.modules and name != 'triton'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
