"""In-context linear regression at equal parameters: fewer heads of higher rank, or more of lower (A-icl)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.reproduce.base import Claim, Outcome, Progress, Reproduction, Scale, silent
from rankfall.reproduce.trained_cells import finished, missing_note, train
from rankfall.reproduce.trained_points import error_of, points
from rankfall.training.cell import Cell
from rankfall.training.grid import read_grid

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRID = "amsel-in-context"
BY = ("layers", "rank")
SHARED: dict[str, Any] = {"task": "in-context", "mask": "causal", "positions": "additive", "data": "fresh"}
UNLEARNED = 0.95
"""Errors above this are that of outputting zero, 1."""
UNLEARNED_NOTE = "No model has learned the task: every error is that of outputting zero; ranks cannot be compared."
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"dim": 8, "points": 8, "feed_forward": 32, "batch": 32, "steps": 300, "layers": 1},
    "quick": {"dim": 16, "points": 16, "feed_forward": 128, "batch": 64, "steps": 2000, "layers": 2},
}


@final
class InContextFigure(Reproduction):
    id: ClassVar[str] = "amsel/in-context"
    title: ClassVar[str] = "In-context linear regression: error against rank at equal parameters"
    statements: ClassVar[tuple[str, ...]] = ("A-icl",)

    def run(self, scale: Scale, progress: Progress = silent) -> Outcome:
        import pandas as pd

        cells = figure_cells(scale)
        trained, missing = finished(cells) if scale == "paper" else (train(cells, progress), [])
        found = points(trained, BY, {})
        return Outcome(
            points=found,
            claims=rank_claims(found) if scale != "smoke" else [],
            tables={"in_context": pd.DataFrame(found)},
            draw=(lambda: _draw(found, cells[0].dim)) if found else None,
            notes=[
                *missing_note(missing, len(cells), BY, (GRID,)),
                *([UNLEARNED_NOTE] if nothing_learned(found) else []),
                "The published curves are not at hand as numbers: the claim is the paper's, the numbers are ours. "
                "Outputting zero costs 1; the error is the mean over all positions of the prompt.",
            ],
        )


def figure_cells(scale: Scale) -> list[Cell]:
    """One width, all ranks: equal parameters throughout, and fresh data, as the task's authors train."""
    if scale == "paper":
        return read_grid(GRID)
    base = Cell(**SHARED, **SMALL[scale], rank=1, learning_rate=0.003, recipe="stable")
    return [dataclasses.replace(base, rank=rank) for rank in (1, base.dim)]


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


def _draw(found: Sequence[Mapping[str, Any]], dim: int) -> Figure:
    from rankfall.drawing.rank_curves import rank_curves

    return rank_curves(
        found,
        panel=lambda record: "in-context linear regression",
        line=lambda record: f"{record['layers']} layers",
        width=lambda record: dim,
    )


REPRODUCTION = InContextFigure()
