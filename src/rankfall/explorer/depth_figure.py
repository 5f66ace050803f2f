"""mu and effective rank by depth, with the theorem's bound and the tail rate drawn in."""

from __future__ import annotations

import math
from typing import Any

from rankfall.explorer.theme import BLUE, GREEN, INK, ORANGE, VERMILION, axis, figure, layout, line
from rankfall.explorer.token_curves import TokenCurves

HEIGHT = 470


def draw_depth(curves: TokenCurves, layer: int) -> Any:
    """Above log10 mu, below the effective rank; a thin line marks the layer that is shown elsewhere."""
    data = [line("mu, measured", curves.layers, curves.log10_mu, BLUE, hovertemplate="layer %{x}: 10^%{y:.3f}")]
    if curves.bound_log10_mu is not None:
        data.append(line("theorem's bound", curves.layers, curves.bound_log10_mu, VERMILION, dash="dash"))
    tail = tail_line(curves)
    if tail is not None:
        data.append(line("tail rate, by theory", *tail, ORANGE, dash="dot", width=3))
    data.append(
        line("effective rank", curves.layers, curves.effective_rank, GREEN, yaxis="y2", hovertemplate="%{y:.3f}")
    )
    shape = layout("Collapse by depth", HEIGHT, hovermode="x")
    shape |= {
        "xaxis": axis("layer", anchor="y2"),
        "yaxis": axis("log10 mu", domain=[0.46, 1]),
        "yaxis2": axis("effective rank", domain=[0, 0.38], rangemode="tozero"),
        "shapes": [
            {
                "type": "line",
                "x0": layer,
                "x1": layer,
                "yref": "paper",
                "y0": 0,
                "y1": 1,
                "line": {"color": INK, "width": 1},
            }
        ],
        "margin": {"l": 60, "r": 16, "t": 40, "b": 90},
    }
    return figure(data, shape)


def tail_line(curves: TokenCurves) -> tuple[list[float], list[float]] | None:
    """The line of the tail rate through the curve's end, over its last two thirds; None where there is none to draw.

    A cubic fall is faster than any line: nothing is drawn then.
    """
    rate, end = curves.tail_rate, curves.log10_mu[-1]
    if rate is None or not 0 < rate < 1 or not math.isfinite(end) or curves.layers[-1] == 0:
        return None
    last = curves.layers[-1]
    start = last / 3
    return [start, float(last)], [end - (last - start) * math.log10(rate), end]
