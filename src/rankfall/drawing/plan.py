"""The plan as one picture: what trained models of each rank reach, the bound, language models, the time of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def draw_plan(rows: Rows, title: str, directions: int) -> Figure:
    """Trained error, bound and, where known, the loss of language models and step time; a line per family of rows."""
    timed = rows[0]["step_seconds"] is not None
    known = rows[0].get("trained_error") is not None
    # of language models only where some of the size were trained
    read = rows[0].get("text_excess") is not None and not rows[0]["text_excess_outside"]
    shown = (("trained", known), ("bound", True), ("text", read), ("time", timed))
    panels = [name for name, there in shown if there]
    figure, axes = canvas(1, len(panels))
    for (name, members), colour, marker in zip(families(rows).items(), COLOURS, MARKERS, strict=False):
        ranks = [row["rank"] for row in members]
        style: dict[str, Any] = {"color": colour, "marker": marker, "ms": 4, "alpha": 0.8, "label": f"equal {name}"}
        for panel, axis in zip(panels, axes.flat, strict=True):
            if panel == "trained":
                axis.plot(ranks, [row["trained_error"] for row in members], **style)
                low, high = ([row[f"trained_error_{end}"] for row in members] for end in ("low", "high"))
                axis.fill_between(ranks, low, high, color=colour, alpha=0.15, linewidth=0)
                axis.set_ylabel(f"trained error, {directions} directions")
            elif panel == "bound":
                axis.plot(ranks, [row["mse_lower_bound_with_skip"] for row in members], **style)
                axis.set_ylabel("lower bound, one bare layer with a skip connection")
            elif panel == "text":
                trained = [row for row in members if row["text_excess"] is not None]
                of = [row["rank"] for row in trained]
                percent = {end: [100 * row[f"text_excess{end}"] for row in trained] for end in ("", "_low", "_high")}
                axis.plot(of, percent[""], **style)
                axis.fill_between(of, percent["_low"], percent["_high"], color=colour, alpha=0.15, linewidth=0)
                axis.set_ylabel("loss of language models over the best rank, %")
            else:
                axis.plot(ranks, [row["step_seconds"] for row in members], **style)
                axis.set_ylabel("training step of one sequence, seconds")
    reference = rows[0]
    ranks = sorted({row["rank"] for row in rows})
    for axis in axes.flat:
        axis.axvline(reference["rank"], color="grey", linewidth=0.8, linestyle=":")
        axis.set(xscale="log", xlabel="rank r of a head", ylim=(0, None))
        axis.set_xticks(ranks, [str(rank) for rank in ranks], fontsize=8, rotation=45)
        axis.minorticks_off()
        axis.legend(loc="lower left", fontsize=8)
    axes[0, 0].annotate(
        f"usual: H={reference['heads']}, r={reference['rank']}",
        (reference["rank"], axes[0, 0].get_ylim()[1]),
        xytext=(3, -9),
        textcoords="offset points",
        size=8,
    )
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
