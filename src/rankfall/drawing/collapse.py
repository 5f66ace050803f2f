"""mu against depth, one line per mask, with the tail that theory predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, canvas, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankfall.dynamics.experiment import MaskResult

# Deeper than this the cubic curve would squeeze all others into one line.
DEEPEST_CUBIC = -400.0


def curve_of(report: MaskResult) -> dict[str, Any]:
    """What one mask did, as a curve to draw."""
    floor = report.floors[0]
    return {
        "name": str(report.mask),
        "layers": [row["layer"] for row in report.records],
        "log10_mu": [row[report.followed] for row in report.records],
        "of": report.followed.removeprefix("log10_").replace("_", " "),
        "effective_rank": [row["effective_rank"] for row in report.records],
        "energy_rank": [row["energy_rank"] for row in report.records],
        "tail_rate": report.tail_rate,
        "cubic": report.rates[0] is not None and report.rates[0].law == "cubic",
        "floor": (floor["layer"], floor["log10_mu"]) if floor["reached"] else None,
    }


def draw_collapse(curves: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Above log10 mu, to any depth and in the first layers, where ordinary floating point still follows; below ranks.

    A curve has `name`, `layers`, `log10_mu`, and may have `of` (of what that is the logarithm, if not of mu),
    `tail_rate`, `floor` (layer, log10 mu), `effective_rank` and `energy_rank`.
    """
    figure, axes = canvas(2, 2, size=(5.6, 3.4))
    deep, shallow = axes[0]
    ranks = dict(zip(("effective_rank", "energy_rank"), axes[1], strict=True))
    slow = [curve["log10_mu"][-1] for curve in curves if not curve.get("cubic")]
    # Exactly equal tokens have mu = 0, which has no logarithm.
    lowest = min([value for value in slow if value is not None and math.isfinite(value)] or [DEEPEST_CUBIC])
    for curve, colour in zip(curves, COLOURS * len(curves), strict=False):
        layers, values = curve["layers"], curve["log10_mu"]
        for axis in (deep, shallow):
            axis.plot(layers, values, color=colour, label=curve["name"])
        tail = tail_line(curve.get("tail_rate"), layers, values)
        if tail is not None and not curve.get("cubic"):
            deep.plot(*tail, ":", color="black", linewidth=1, zorder=5)
        if curve.get("floor"):
            for axis in (deep, shallow):
                axis.plot(*curve["floor"], "o", color=colour, markersize=5)
        for measure, axis in ranks.items():
            if curve.get(measure):
                axis.plot(layers, curve[measure], color=colour, label=curve["name"])
    deep.set_ylim(min(lowest * 1.05, -1.0), 2.0)
    shallow.set_ylim(-18, 2)
    shallow.axhspan(-18, -15.5, color="0.9")
    shallow.text(
        0.98, 0.03, "rounding noise of float64", ha="right", va="bottom", transform=shallow.transAxes, color="0.35"
    )
    first = min(max((curve["layers"][-1] for curve in curves), default=1), 120)
    shallow.set_xlim(0, max(first, 1))
    deep.set_title("exact, to any depth")
    shallow.set_title("dots: plain float64 goes wrong here")
    for measure, axis in ranks.items():
        axis.set_xscale("symlog", linthresh=1)
        axis.set_ylabel(measure.replace("_", " "))
    for axis in (deep, shallow):
        axis.set_ylabel(f"log10 of {curves[0].get('of', 'mu') if curves else 'mu'}")
    for axis in axes.flat:
        axis.set_xlabel("layer")
    deep.legend(fontsize=8)
    heading(figure, title)
    return figure


def tail_line(
    rate: float | None, layers: Sequence[int], log10_mu: Sequence[float | None]
) -> tuple[list[float], list[float]] | None:
    """The line of the tail rate through the curve's end, over its last two thirds; None where there is none to draw.

    A cubic fall is faster than any line: its rate is 0.
    """
    last, end = layers[-1], log10_mu[-1]
    if rate is None or not 0 < rate < 1 or end is None or not math.isfinite(end) or last == 0:
        return None
    start = last / 3
    return [start, float(last)], [end - (last - start) * math.log10(rate), end]
