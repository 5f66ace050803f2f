"""What trained sweeps found for a candidate: one more column of the plan."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.training.cell import Cell
from rankfall.training.planning.candidates import Candidate
from rankfall.training.planning.costs import StackShape
from rankfall.training.planning.table import Column

FIELDS = tuple(Cell.__dataclass_fields__)


def accuracy_column(runs: Sequence[Mapping[str, Any]], task: str) -> Column:
    """Mean error on fresh data over all finished runs of the task with the candidate's width, layers, heads and rank.

    `runs` are rows of a store. Points, steps and protocol may differ between them: the column says what training
    reached, `runs_measured` how many runs it is the mean of. No run: None.
    """
    errors: dict[tuple[int, ...], list[float]] = {}
    for run in runs:
        if (
            run.get("status") == "done"
            and run.get("task") == task
            and math.isfinite(run.get("mse_fresh") or math.nan)
        ):
            cell = Cell(**{name: run[name] for name in FIELDS if name in run})
            key = (cell.width, cell.layers, cell.heads, cell.heads, cell.rank, cell.value_width)
            errors.setdefault(key, []).append(float(run["mse_fresh"]))

    def column(candidate: Candidate) -> dict[str, Any]:
        found = errors.get(_key(candidate.shape), [])
        return {"mse_measured": statistics.fmean(found) if found else None, "runs_measured": len(found)}

    return column


def _key(shape: StackShape) -> tuple[int, ...]:
    return shape.dim, shape.layers, shape.heads, shape.kv_heads, shape.rank, shape.value_rank
