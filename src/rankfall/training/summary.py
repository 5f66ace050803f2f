"""Over seeds: the best that the paper plots, and the mean and spread that readers asked for."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from rankfall.training.cell import Cell

Trained = tuple[Cell, Mapping[str, Any]]
"""A cell and its summary."""

GROUPED = ("layers", "multiplier", "rank", "points", "positions", "task", "recipe", "data")
MEASURED = ("mse_best", "mse_final", "mse_fresh")


def aggregate(trained: Iterable[Trained], by: tuple[str, ...] = GROUPED) -> list[dict[str, Any]]:
    """One record per group of cells that agree in the fields `by`.

    For each measured error over seeds: `_best` (least), `_mean`, `_spread` (largest minus least) and `_deviation`
    (standard, None below two). Diverged runs are counted and left out of the errors. Where a group holds several
    settings, such as learning rates, the record is of the one with the lowest `mse_best`: runs at a bad rate say
    nothing about the spread over seeds.
    """
    groups: dict[tuple[Any, ...], list[Trained]] = {}
    for cell, summary in trained:
        groups.setdefault(tuple(getattr(cell, name) for name in by), []).append((cell, summary))
    return [_record(dict(zip(by, key, strict=True)), members) for key, members in sorted(groups.items(), key=_order)]


def _order(group: tuple[tuple[Any, ...], list[Trained]]) -> list[tuple[bool, Any]]:
    # Numbers by size, names by letter, nothing before either: one field holds one kind, except for None.
    return [(value is not None, 0 if value is None else value) for value in group[0]]


def _record(key: dict[str, Any], members: list[Trained]) -> dict[str, Any]:
    settings: dict[Cell, list[Trained]] = {}
    for cell, summary in members:
        settings.setdefault(dataclasses.replace(cell, seed=0), []).append((cell, summary))
    members = min(settings.values(), key=_least)
    done = [summary for _, summary in members if summary["status"] == "done"]
    record = {**key, "heads": members[0][0].heads, "runs": len(done), "diverged": len(members) - len(done)}
    for name in MEASURED:
        values = [float(summary[name]) for summary in done if math.isfinite(summary[name])]
        record |= {
            f"{name}_best": min(values) if values else None,
            f"{name}_mean": statistics.fmean(values) if values else None,
            f"{name}_spread": max(values) - min(values) if values else None,
            f"{name}_deviation": statistics.stdev(values) if len(values) > 1 else None,
        }
    return record


def _least(members: list[Trained]) -> float:
    found = (float(summary["mse_best"]) for _, summary in members if summary["status"] == "done")
    return min((error for error in found if math.isfinite(error)), default=math.inf)
