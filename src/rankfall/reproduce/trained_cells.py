"""Where the trained cells of a figure come from: trained here and now, or finished before and kept."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rankfall
from rankfall.reproduce.base import Progress, Scale
from rankfall.runs import Store, identity
from rankfall.runs.plaintext import from_csv
from rankfall.training.cell import Cell
from rankfall.training.stack import Stack, stack_key
from rankfall.training.summary import Trained

STORE_VARIABLE = "RANKFALL_STORE"
"""The store that figures look into, besides the results that ship with the project."""
DEFAULT_STORE = Path("runs")


def gather(
    cells: Sequence[Cell], scale: Scale, progress: Progress, by: tuple[str, ...], grids: Sequence[str]
) -> tuple[list[Trained], list[str]]:
    """The trained cells of a figure, and what to say about those that nobody has trained yet."""
    if scale != "paper":
        return train(cells, progress), []
    found, missing = finished(cells)
    return found, missing_note(missing, len(cells), by, grids)


def train(cells: Sequence[Cell], progress: Progress) -> list[Trained]:
    """Train the cells on this machine's processors, one stack per key: for the small scales."""
    groups: dict[Any, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(stack_key(cell), []).append(cell)
    total = sum(len(group) * group[0].chunks * group[0].layers for group in groups.values())
    done = 0
    trained: list[Trained] = []
    for group in groups.values():
        stack = Stack(group)
        while stack.chunks_done < stack.chunks_total:
            stack.advance()
            done += len(group) * group[0].layers
            progress(f"training {len(group)} models of {group[0].layers} layers together", done / total)
        trained += list(zip(group, stack.summaries(), strict=True))
    return trained


def finished(cells: Sequence[Cell]) -> tuple[list[Trained], list[Cell]]:
    """The cells whose summaries are at hand, and those that are missing."""
    known = committed_summaries() | stored_summaries(cells)
    found = [(cell, known[identity(cell)]) for cell in cells if identity(cell) in known]
    return found, [cell for cell in cells if identity(cell) not in known]


def stored_summaries(cells: Sequence[Cell]) -> dict[str, Mapping[str, Any]]:
    """Summaries in the user's own store, where there is one."""
    path = Path(os.environ.get(STORE_VARIABLE, DEFAULT_STORE))
    if not (path / "store.json").exists():
        return {}
    store = Store(path, create=False)
    wanted = {identity(cell) for cell in cells}
    return {run.id: run.summary() for run in store.runs() if run.id in wanted}


def committed_summaries() -> dict[str, Mapping[str, Any]]:
    """Summaries that ship with the project, each with what produced it under `environment`."""
    package = Path(rankfall.__file__).parent
    known: dict[str, Mapping[str, Any]] = {}
    for folder in (package / "results", package.parents[1] / "results"):
        for page in sorted(folder.rglob("*.csv")):
            notes = page.with_suffix(".json")
            if notes.exists():
                environments = json.loads(notes.read_text())["environments"]
                for row in from_csv(page.read_text()):
                    known[row["id"]] = {**row, "environment": environments[row["environment"]]}
    return known


def missing_note(missing: Sequence[Cell], wanted: int, by: tuple[str, ...], grids: Sequence[str]) -> list[str]:
    """What to say about cells that nobody has trained yet."""
    if not missing:
        return []
    kinds: dict[str, int] = {}
    for cell in missing:
        kind = ", ".join(f"{name}={getattr(cell, name)}" for name in (*by, "data"))
        kinds[kind] = kinds.get(kind, 0) + 1
    shown = "; ".join(f"{kind} ({count})" for kind, count in list(kinds.items())[:6])
    more = f"; and {len(kinds) - 6} kinds more" if len(kinds) > 6 else ""
    return [
        f"{len(missing)} of {wanted} cells are not trained yet: {shown}{more}. "
        + " ".join(f"`rankfall sweep {grid} --store {DEFAULT_STORE}`" for grid in grids)
        + " trains them and goes on from what is there."
    ]
