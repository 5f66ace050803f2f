"""Errors of low-rank heads: against their number, and against their rank at equal weights."""

from __future__ import annotations

from typing import Any

from rankfall.explorer.head_curves import DESIGNS, HEAD_COUNTS, HeadCurves, possible
from rankfall.explorer.state import HeadState
from rankfall.explorer.theme import BLUE, GREEN, ORANGE, VERMILION, line, lines, panel


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
