"""mu and effective rank by depth, with the theorem's bound and the tail rate drawn in."""

from __future__ import annotations

import math
from typing import Any

from rankfall.explorer.theme import BLUE, GREEN, ORANGE, VERMILION, line, lines, panel
from rankfall.explorer.token_curves import TokenCurves

HEIGHT = 400


def draw_depth(curves: TokenCurves, layer: int) -> dict[str, Any]:
    """Above log10 mu, below the effective rank; a thin line marks the layer that is shown elsewhere."""
    fall = [line("mu, measured", curves.layers, curves.log10_mu, BLUE)]
    if curves.bound_log10_mu is not None:
        fall.append(line("theorem's bound", curves.layers, curves.bound_log10_mu, VERMILION, dash="dash"))
    tail = tail_line(curves)
    if tail is not None:
        fall.append(line("tail rate, by theory", *tail, ORANGE, dash="dot", width=3))
    rank = [line("effective rank", curves.layers, curves.effective_rank, GREEN)]
    panels = [panel("log10 mu", fall, share=6), panel("effective rank", rank, share=4, zero=True)]
    return lines("depth", "Collapse by depth", {"label": "layer"}, panels, mark=layer, height=HEIGHT)


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
