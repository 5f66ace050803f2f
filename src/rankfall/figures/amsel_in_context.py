"""In-context linear regression at equal parameters: fewer heads of higher rank, or more of lower (A-icl)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.trained import error_of, gather, points
from rankfall.progress import Progress, silent
from rankfall.tasks.in_context import InContext
from rankfall.training.cell import Cell
from rankfall.training.grid import read_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = "amsel-in-context"
BY = ("layers", "rank")
# Full rank at quick scale reaches 0.44. Each alone keeps it from learning anything in that time, all else equal: the
# published norm, unit length and one learned number, in place of layer norm (0.98); x in 8 dimensions, not 4 (1.00).
SHARED: dict[str, Any] = {
    "mask": "causal", "positions": "additive", "data": "fresh", "norm": "layer", "recipe": "stable"
}  # fmt: skip
UNLEARNED = 0.95
"""Errors above this are that of outputting zero, 1."""
UNLEARNED_NOTE = "No model has learned the task: every error is that of outputting zero; ranks cannot be compared."
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {
        "task": "in-context:2",
        "dim": 8,
        "points": 6,
        "feed_forward": 32,
        "batch": 32,
        "steps": 300,
        "layers": 1,
    },
    "quick": {
        "task": "in-context:4",
        "dim": 16,
        "points": 12,
        "feed_forward": 64,
        "batch": 64,
        "steps": 2000,
        "layers": 2,
    },
}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    cells = figure_cells(scale)
    trained, notes = gather(cells, scale, progress, BY, (GRID,))
    task, lengths = cells[0].task_object, (cells[0].points, cells[0].dim)
    assert isinstance(task, InContext)
    least = task.least_error(*lengths)
    found = [{**point, "least": least} for point in points(trained, BY, {})]
    return FigureOutcome(
        points=found,
        claims=rank_claims(found) if scale != "smoke" else [],
        tables={"in_context": found},
        draw=(lambda: _draw(found, cells[0].dim, least)) if found else None,
        notes=[
            *notes,
            *([UNLEARNED_NOTE] if nothing_learned(found) else []),
            "The published curves are not at hand as numbers: the claim is the paper's, the numbers are ours. "
            "Outputting zero costs 1. The error is the mean over all positions of the prompt, the first too, "
            f"where w is not yet determined: no predictor at all stays below {least:.3f} (`least`).",
        ],
    )


def figure_cells(scale: Scale) -> list[Cell]:
    """One width, all ranks: equal parameters throughout, and fresh data, as the task's authors train."""
    if scale == "paper":
        return read_points(GRID)
    base = Cell(**SHARED, **SMALL[scale], rank=1, learning_rate=0.005)
    return [
        dataclasses.replace(base, rank=rank, seed=seed)
        for rank in (1, base.dim // 4, base.dim)
        for seed in range(1 if scale == "smoke" else 2)
    ]


def rank_claims(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Full rank beats rank one at equal parameters; no claim either way while no model has learned anything."""
    errors = measured_errors(found)
    if len(errors) < 2 or nothing_learned(found):
        return []
    low, high = min(errors), max(errors)
    return [
        Claim(
            f"at equal parameters r = {high} predicts better than r = {low}",
            errors[high] < errors[low],
            f"{errors[high]:.4g} against {errors[low]:.4g}",
        )
    ]


def nothing_learned(found: Sequence[Mapping[str, Any]]) -> bool:
    """Every error is that of outputting zero: ranks cannot be compared yet."""
    errors = measured_errors(found)
    return bool(errors) and min(errors.values()) > UNLEARNED


def measured_errors(found: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The error at each rank that has one."""
    return {point["rank"]: error for point in found if (error := error_of(point)) is not None}


def _draw(found: Sequence[Mapping[str, Any]], dim: int, least: float) -> Figure:
    figure = rank_curves(
        found,
        panel=lambda record: "in-context linear regression",
        line=lambda record: f"{record['layers']} layers",
        width=lambda record: dim,
    )
    figure.axes[0].axhline(least, color="#999999", linewidth=1, linestyle=":")
    figure.axes[0].annotate("the least there is", (1.0, least), ha="right", va="bottom", fontsize=8, color="#555555")
    return figure


REPRODUCTION = Reproduction(
    "amsel/in-context",
    "In-context linear regression: error against rank at equal parameters",
    ("A-icl",),
    run,
    columns={"least": "error that no predictor stays below, however good"},
)
