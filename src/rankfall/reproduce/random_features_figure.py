"""The picture of A-rf: exact errors, their prediction, the plateaus, and the published values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.reproduce.published_values import published
from rankfall.theory.plateaus import plateau

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_random_features(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Three panels: independent heads by width, signed heads by width, and d=64 by design beside published values."""
    from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

    figure, axes = canvas(1, 3, size=(4.6, 3.8), sharey=True)
    dims = sorted({row["dim"] for row in rows})
    for axis, design in zip(axes[0], ("independent", "signed"), strict=False):
        for place, dim in enumerate(dims):
            chosen = [row for row in rows if (row["design"], row["dim"]) == (design, dim)]
            heads = [row["heads"] for row in chosen]
            axis.plot(heads, [row["mse"] for row in chosen], MARKERS[place], color=COLOURS[place], label=f"d={dim}")
            axis.plot(heads, [row["predicted"] for row in chosen], color=COLOURS[place], linewidth=1)
            axis.axhline(plateau(dim, 1), color=COLOURS[place], linestyle=":", linewidth=0.8)
        title = "k independent of q" if design == "independent" else "k = q or -q"
        axis.set_title(f"{title} (lines: predicted)")
        axis.legend(fontsize=8)
    last = axes[0, 2]
    for place, design in enumerate(("independent", "signed", "tilted")):
        chosen = [row for row in rows if (row["design"], row["dim"]) == (design, dims[-1])]
        label = {"tilted": "<q,k> = ±0.6", "signed": "k = ±q"}.get(design, design)
        last.plot([r["heads"] for r in chosen], [r["mse"] for r in chosen], marker=MARKERS[place], label=label)
    bound = [row for row in rows if (row["design"], row["dim"]) == ("signed", dims[-1])]
    last.plot([r["heads"] for r in bound], [r["lower_bound"] for r in bound], color="grey", label="lower bound")
    theirs = [row for row in published("amsel_random_features.csv") if int(row["dim"]) == dims[-1]]
    last.plot(
        [int(row["heads"]) for row in theirs],
        [float(row["mse"]) for row in theirs],
        "kx",
        markersize=10,
        markeredgewidth=2,
        label="published",
        zorder=5,
    )
    last.set_title(f"d = {dims[-1]}, by design")
    last.legend(fontsize=8)
    for axis in axes[0]:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("heads H (dotted: degree-1 plateau)" if axis is not last else "heads H")
    axes[0, 0].set_ylabel("mean squared error")
    return figure
