"""Trained cells of a figure: trained here and now or kept from before, against published points."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfall.figures.base import Scale
from rankfall.progress import Progress
from rankfall.store.identity import identity
from rankfall.store.results import committed_summaries
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.stack import Stack, stack_key
from rankfall.training.sweep import Trained, aggregate
from rankfall.training.threads import stack_threads

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
        with stack_threads(tuple(group), "cpu"):
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
        + _together([f"`rankfall sweep {grid} --store {DEFAULT_STORE}`" for grid in grids])
        + f" {'trains' if len(grids) == 1 else 'train'} them, and each goes on from what is there."
    ]


def _together(words: Sequence[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


TOLERANCE = 0.03
"""Share of the published value by which ours may differ, or the spread over our seeds where that is larger."""

Key = tuple[Any, ...]


def points(trained: Sequence[Trained], by: tuple[str, ...], published: Mapping[Key, float]) -> list[dict[str, Any]]:
    """One record per setting: what was published, ours on the repeated sample (this must agree), ours on fresh data.

    `ours` is the least training loss over seeds, as the paper plots it; `same_weights_fresh` is what these very
    models reach on data they have not seen; `trained_fresh` the models that saw new data in every step.
    """
    settings: dict[Key, dict[str, dict[str, Any]]] = {}
    for record in aggregate(trained, (*by, "data")):
        settings.setdefault(tuple(record[name] for name in by), {})[record["data"]] = record
    for key in published:
        settings.setdefault(key, {})
    return [_point(dict(zip(by, key, strict=True)), kinds, published.get(key)) for key, kinds in settings.items()]


def _point(key: dict[str, Any], kinds: Mapping[str, Mapping[str, Any]], published: float | None) -> dict[str, Any]:
    repeated, fresh = kinds.get("published", {}), kinds.get("fresh", {})
    ours = repeated.get("mse_best_best")
    agrees = tolerance = None
    if published is not None and ours is not None:
        tolerance = max(TOLERANCE * published, repeated["mse_best_spread"])
        agrees = abs(ours - published) <= tolerance
    return {
        **key,
        "published": published,
        "ours": ours,
        "tolerance": tolerance,
        "agrees": agrees,
        "mean": repeated.get("mse_best_mean"),
        "spread": repeated.get("mse_best_spread"),
        "same_weights_fresh": repeated.get("mse_fresh_mean"),
        "trained_fresh": fresh.get("mse_fresh_mean"),
        "trained_fresh_best": fresh.get("mse_fresh_best"),
        "trained_fresh_spread": fresh.get("mse_fresh_spread"),
        "runs": repeated.get("runs", 0),
        "runs_fresh": fresh.get("runs", 0),
        "diverged": repeated.get("diverged", 0) + fresh.get("diverged", 0),
    }


ERRORS = {
    "trained_fresh": "error on fresh data of models trained on fresh data",
    "same_weights_fresh": "error on fresh data of models trained on the repeated sample",
    "ours": "training loss on the repeated sample",
}
"""The columns that a claim may be judged by, the best first, in words."""


def error_of(record: Mapping[str, Any]) -> float | None:
    """The error to judge a claim by: models trained on fresh data where there are any."""
    for name in ERRORS:
        if record[name] is not None:
            return float(record[name])
    return None


def shared_error(*records: Mapping[str, Any]) -> str | None:
    """The column of `ERRORS` to compare records by: the best that all of them have; None when there is none."""
    return next((name for name in ERRORS if all(record[name] is not None for record in records)), None)
