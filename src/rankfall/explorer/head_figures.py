"""Errors of low-rank heads: against their number, and against their rank at equal weights."""

from __future__ import annotations

from typing import Any

from rankfall.explorer.head_curves import DESIGNS, HEAD_COUNTS, HeadCurves, possible
from rankfall.explorer.state import HeadState
from rankfall.explorer.theme import BLUE, GREEN, INK, ORANGE, VERMILION, axis, figure, layout, line

HEIGHT = 430


def draw_heads(state: HeadState, curves: HeadCurves) -> Any:
    """Error against H: below the floor no heads of this rank can go, whatever their weights."""
    state = possible(state)
    data = [
        line(f"floor at rank {state.rank}", HEAD_COUNTS, _above_zero(curves.floors), BLUE, width=3),
        *(
            line(f"{label}, predicted", HEAD_COUNTS, curves.predicted[design], colour, dash="dash")
            for (design, label), colour in zip(DESIGNS.items(), (ORANGE, GREEN), strict=True)
        ),
        _dot("chosen", state.heads, curves.floor),
    ]
    shape = layout(f"H heads of rank {state.rank}, d = {state.dim}", HEIGHT)
    shape |= {
        "xaxis": axis("heads H", type="log", exponentformat="power"),
        "yaxis": axis("mean squared error", rangemode="tozero"),
    }
    return figure(data, shape)


def draw_ranks(state: HeadState, curves: HeadCurves) -> Any:
    """Error floor against r with H = d / r heads: the usual choice, all of the same number of weights."""
    state = possible(state)
    ranks, heads, floors = zip(*curves.by_rank, strict=True)
    data = [
        line("floor with H = d / r", ranks, floors, BLUE, mode="lines+markers", text=[f"{h} heads" for h in heads]),
        _dot(f"chosen: {state.heads} heads", state.rank, curves.floor),
    ]
    shape = layout(f"The same weights in d / r heads, d = {state.dim}", HEIGHT)
    shape |= {
        "xaxis": axis("rank r", type="log", dtick=0.30103 if state.dim <= 128 else 1),
        "yaxis": axis("error floor", rangemode="tozero"),
    }
    return figure(data, shape)


def _dot(name: str, x: float, y: float) -> dict[str, Any]:
    marker = {"size": 12, "color": VERMILION, "line": {"width": 1, "color": INK}}
    return {"type": "scatter", "mode": "markers", "name": name, "x": [x], "y": [y], "marker": marker}


def _above_zero(values: tuple[float, ...]) -> list[float]:
    return [max(0.0, value) for value in values]
