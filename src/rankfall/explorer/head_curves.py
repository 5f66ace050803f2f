"""What the second tab computes: error floors, predicted errors of random heads, and the planner's table, untimed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, final

from rankfall.drawing.plots import BLUE, GREEN, ORANGE, VERMILION, line, lines, panel
from rankfall.explorer.state import HeadState
from rankfall.explorer.widgets import facts, side_by_side, small
from rankfall.planning.candidates import Sharing, candidates, reference_shape, usual_heads
from rankfall.planning.table import floor_column, plan
from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.theory.random_features.learning_curve import predicted_error

HEAD_COUNTS = tuple(2**power for power in range(21))
HEADS_NOTE = (
    "The target is the nearer of two orthonormal points. The floor is proved: no weights of one bare layer, "
    "read linearly, go below it. Random heads "
    "are fitted as well as can be; their error is predicted, and theirs is rank 1 whatever r is."
)
DESIGNS = {"independent": "random rank-1 heads", "signed": "random rank-1 heads, k = ±q"}


@final
@dataclass(frozen=True)
class HeadCurves:
    """Errors by head count at the chosen rank, by rank at equal weights, and at the chosen point.

    `floors` and `predicted` run over HEAD_COUNTS; `by_rank` holds (rank, heads, floor) with heads = d / r, for
    every rank that divides the width.
    """

    floor: float
    baseline: float
    floors: tuple[float, ...]
    predicted: dict[str, tuple[float, ...]]
    predicted_here: dict[str, float]
    by_rank: tuple[tuple[int, int, float], ...]


def possible(state: HeadState) -> HeadState:
    """The same with a rank that the width allows; sliders move one at a time."""
    return replace(state, rank=min(state.rank, state.dim))


def head_curves(state: HeadState) -> HeadCurves:
    """Floors and predictions for the chosen width, rank and heads."""
    state = possible(state)
    here = mse_floor(HeadClass(state.dim, state.rank), state.heads)
    return HeadCurves(
        floor=here.mse,
        baseline=here.baseline,
        floors=_floors(state.dim, state.rank),
        predicted={design: _predicted(design, state.dim) for design in DESIGNS},
        predicted_here={design: predicted_error(design, state.dim, state.heads) for design in DESIGNS},
        by_rank=_by_rank(state.dim),
    )


@functools.lru_cache(maxsize=256)
def _floors(dim: int, rank: int) -> tuple[float, ...]:
    return tuple(mse_floor(HeadClass(dim, rank), heads).mse for heads in HEAD_COUNTS)


@functools.lru_cache(maxsize=64)
def _predicted(design: str, dim: int) -> tuple[float, ...]:
    return tuple(predicted_error(design, dim, heads) for heads in HEAD_COUNTS)


@functools.lru_cache(maxsize=64)
def _by_rank(dim: int) -> tuple[tuple[int, int, float], ...]:
    ranks = [rank for rank in range(1, dim + 1) if dim % rank == 0]
    return tuple((rank, dim // rank, mse_floor(HeadClass(dim, rank), dim // rank).mse) for rank in ranks)


@functools.lru_cache(maxsize=64)
def plan_rows(dim: int, layers: int, context: int) -> tuple[dict[str, Any], ...]:
    """The rows of `rankfall plan --no-time`."""
    sharing = Sharing()
    reference = reference_shape(dim, layers, context, usual_heads(dim, sharing), 7 * dim // 2, sharing, gated=True)
    return tuple(plan(candidates(reference, sharing), [floor_column(reference)]))


def plan_table(rows: tuple[dict[str, Any], ...]) -> dict[str, Any]:
    """The planner's rows with the columns that fit on a screen, in units that people read."""
    shown = [
        {
            "heads": row["heads"],
            "rank": row["rank"],
            "equal": ", ".join(row["equal"]),
            "million parameters": round(row["parameters"] / 1e6, 2),
            "TFLOP a step": float(f"{row['flops'] / 1e12:.3g}"),
            "cache, MiB": float(f"{row['kv_cache_bytes'] / 2**20:.4g}"),
            "error floor": round(row["mse_lower_bound"], 4),
            "floor with skip": round(row["mse_lower_bound_with_skip"], 4),
        }
        for row in rows
    ]
    return {
        "kind": "table",
        "name": "plan",
        "title": "Heads and ranks that cost the same",
        "columns": list(shown[0]),
        "rows": [list(row.values()) for row in shown],
    }


def summary(state: HeadState, curves: HeadCurves) -> list[tuple[str, str]]:
    """The chosen layer in a few words."""
    state = possible(state)
    size = state.heads * state.rank / state.dim
    random = ", ".join(f"{curves.predicted_here[design]:.4f} ({design})" for design in DESIGNS)
    return [
        ("lower bound for any such heads", f"{curves.floor:.4g}"),
        ("the bound at H = 0", f"{curves.baseline:.4g}"),
        (f"{state.heads} random rank-1 heads", random),
        ("H r / d", f"{size:.3g}" + (", the usual choice" if size == 1 else "")),
    ]


def draw_heads(state: HeadState, curves: HeadCurves) -> dict[str, Any]:
    """Error against H: below the floor no heads of this rank can go, whatever their weights."""
    state = possible(state)
    series = [
        line(f"floor at rank {state.rank}", HEAD_COUNTS, _above_zero(curves.floors), BLUE, width=3),
        *(
            line(f"{label}, predicted", HEAD_COUNTS, curves.predicted[design], colour, dash="dash")
            for (design, label), colour in zip(DESIGNS.items(), (ORANGE, GREEN), strict=True)
        ),
        _dot("chosen", state.heads, curves.floor),
    ]
    title = f"H heads of rank {state.rank}, d = {state.dim}"
    return lines("heads", title, {"label": "heads H", "log": True}, [panel("mean squared error", series, zero=True)])


def draw_ranks(state: HeadState, curves: HeadCurves) -> dict[str, Any]:
    """Error floor against r with H = d / r heads: the usual choice, all of the same number of weights."""
    state = possible(state)
    ranks, heads, floors = zip(*curves.by_rank, strict=True)
    series = [
        line("floor with H = d / r", ranks, floors, BLUE, dots=3, notes=[f"{count} heads" for count in heads]),
        _dot(f"chosen: {state.heads} heads", state.rank, curves.floor),
    ]
    title = f"The same weights in d / r heads, d = {state.dim}"
    return lines("ranks", title, {"label": "rank r", "log": True}, [panel("error floor", series, zero=True)])


def _dot(name: str, x: float, y: float) -> dict[str, Any]:
    return line(name, [x], [y], VERMILION, dots=6, line=False)


def _above_zero(values: tuple[float, ...]) -> list[float]:
    return [max(0.0, value) for value in values]


def head_view(head: HeadState) -> Any:
    """The chosen heads in words, and their errors by number and by rank."""
    import marimo as mo

    curves = head_curves(head)
    plots = side_by_side(draw_heads(head, curves), draw_ranks(head, curves))
    return mo.Html("".join([facts(summary(head, curves)), plots.text, small(HEADS_NOTE)]))
