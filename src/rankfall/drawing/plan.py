"""The plan as one picture: what each rank costs and what error it cannot go below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FAMILIES = ("parameters", "flops")


def draw_plan(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """Error floor against rank and, where it was measured, step time against rank; one line per family."""
    timed = rows[0]["step_seconds"] is not None
    figure, axes = canvas(1, 2 if timed else 1)
    for family, colour, marker in zip(FAMILIES, COLOURS, MARKERS, strict=False):
        members = sorted((row for row in rows if family in row["equal"]), key=lambda row: row["rank"])
        ranks = [row["rank"] for row in members]
        style = {"color": colour, "marker": marker, "label": f"equal {family}", "ms": 4, "alpha": 0.8}
        axes[0, 0].plot(ranks, [row["mse_lower_bound"] for row in members], **style)
        if timed:
            axes[0, 1].plot(ranks, [row["step_seconds"] for row in members], **style)
    reference = rows[0]
    axes[0, 0].axvline(reference["rank"], color="grey", linewidth=0.8, linestyle=":")
    axes[0, 0].annotate(
        f"usual: H={reference['heads']}, r={reference['rank']}",
        (reference["rank"], 0.01),
        xytext=(3, 3),
        textcoords="offset points",
        size=8,
    )
    axes[0, 0].set(xscale="log", xlabel="rank r of a head", ylabel="least error of one layer", ylim=(0, None))
    axes[0, 0].legend()
    if timed:
        axes[0, 1].set(xscale="log", yscale="log", xlabel="rank r of a head", ylabel="training step, seconds")
    for axis in axes.flat:
        ranks = sorted({row["rank"] for row in rows})
        axis.set_xticks(ranks, [str(rank) for rank in ranks], fontsize=8)
        axis.minorticks_off()
    figure.suptitle(title)
    return figure
