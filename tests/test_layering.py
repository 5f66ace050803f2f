"""The rooms of the package in the order in which data flows: a room imports only from rooms above it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import rankfall

ROOT = Path(rankfall.__file__).parent
ROOMS = (
    "__init__",
    "errors",
    "shapes",
    "provenance",
    "linalg",
    "attention",
    "measures",
    "theory",
    "constructions",
    "tasks",
    "dynamics",
    "runs",
    "training",
    "audit",
    "drawing",
    "reproduce",
    "report",
    "explorer",
    "cli",
    "__main__",
)
HEAVY = ("matplotlib", "plotly", "transformers", "duckdb", "ray", "pandas", "typer", "marimo", "triton")


def room_of(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def imports_of(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno} uses a relative import"
            found.append((node.lineno, node.module or ""))
    return found


FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_upwards(path: Path) -> None:
    room = path.relative_to(ROOT).parts[0].removesuffix(".py")
    assert room in ROOMS, f"room {room} is not in the layout"
    for line, module in imports_of(path):
        if module.partition(".")[0] == "rankfall":
            target = room_of(module)
            assert ROOMS.index(target) <= ROOMS.index(room), f"{path}:{line}: {room} imports from {target}"


def test_import_is_light() -> None:
    code = f"import sys, rankfall; print([name for name in {HEAVY!r} + ('torch',) if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_core_needs_no_heavy_library() -> None:
    code = (
        "import sys, rankfall.attention, rankfall.measures;"
        f"print([name for name in {HEAVY!r} if name in sys.modules and name != 'triton'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
