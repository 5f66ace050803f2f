"""Every benchmark can at least be started: what it calls exists. Nothing is timed here."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

import rankfall

FOLDER = Path(rankfall.__file__).parents[2] / "benchmarks"
FILES = sorted(path for path in FOLDER.glob("*.py") if path.stem not in ("__init__", "__main__"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_what_a_benchmark_imports_exists(path: Path) -> None:
    imports = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ours = [(node.module, alias.name) for node in imports for alias in node.names if "rankfall" in str(node.module)]
    missing = [(module, name) for module, name in ours if not _has(str(module), name)]
    assert missing == []


def _has(module: str, name: str) -> bool:
    try:
        return hasattr(importlib.import_module(module), name) or bool(importlib.import_module(f"{module}.{name}"))
    except ModuleNotFoundError:
        return False


def test_benchmarks_are_found() -> None:
    assert len(FILES) > 8
