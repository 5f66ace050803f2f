"""Over seeds: the best that the paper plots, and the mean and spread that readers asked for."""

from __future__ import annotations

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
    """One record per group of cells that agree in the fields `by`: seeds and, where there are several, rates.

    For each measured error: `_best` (least), `_mean`, `_spread` (largest minus least) and `_deviation` (standard,
    None below two). Diverged runs are counted and left out of the errors.
    """
    groups: dict[tuple[Any, ...], list[Trained]] = {}
    for cell, summary in trained:
        groups.setdefault(tuple(getattr(cell, name) for name in by), []).append((cell, summary))
    return [_record(dict(zip(by, key, strict=True)), members) for key, members in sorted(groups.items(), key=repr)]


def _record(key: dict[str, Any], members: list[Trained]) -> dict[str, Any]:
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
