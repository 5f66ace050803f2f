"""The plan as one picture: what each rank costs and what error it cannot go below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def draw_plan(rows: Rows, title: str) -> Figure:
    """Error floor against rank and, where it was measured, step time against rank; one line per family of rows."""
    timed = rows[0]["step_seconds"] is not None
    figure, axes = canvas(1, 2 if timed else 1)
    for (name, members), colour, marker in zip(families(rows).items(), COLOURS, MARKERS, strict=False):
        ranks = [row["rank"] for row in members]
        style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4, "alpha": 0.8}
        axes[0, 0].plot(ranks, [row["mse_lower_bound"] for row in members], label=f"equal {name}", **style)
        skip = [row["mse_lower_bound_with_skip"] for row in members]
        axes[0, 0].plot(ranks, skip, label=f"equal {name}, skip connection", **style | {"ls": "--", "mfc": "white"})
        if timed:
            axes[0, 1].plot(ranks, [row["step_seconds"] for row in members], label=f"equal {name}", **style)
    reference = rows[0]
    ranks = sorted({row["rank"] for row in rows})
    for axis in axes.flat:
        axis.axvline(reference["rank"], color="grey", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", xlabel="rank r of a head", ylim=(0, None))
        axis.set_xticks(ranks, [str(rank) for rank in ranks], fontsize=8)
        axis.minorticks_off()
        axis.legend(loc="lower left", fontsize=8)
    axes[0, 0].set_ylabel("least error of one layer")
    axes[0, 0].annotate(
        f"usual: H={reference['heads']}, r={reference['rank']}",
        (reference["rank"], axes[0, 0].get_ylim()[1]),
        xytext=(3, -9),
        textcoords="offset points",
        size=8,
    )
    if timed:
        axes[0, 1].set_ylabel("training step of one sequence, seconds")
    heading(figure, title)
    return figure


def families(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of equal parameters and of equal FLOPs by rank; one family where they are the same rows."""
    found = {
        name: sorted((row for row in rows if name in row["equal"]), key=lambda row: (row["rank"], row["heads"]))
        for name in ("parameters", "flops")
    }
    if found["parameters"] == found["flops"]:
        return {"parameters and FLOPs": found["parameters"]}
    return {"parameters": found["parameters"], "FLOPs": found["flops"]}
