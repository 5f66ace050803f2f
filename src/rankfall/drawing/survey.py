"""The survey as one picture: H r / d and r / d of every architecture against its width."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading
from rankfall.models.architectures.survey import HeadShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

KINDS = ("one key head per query head", "grouped keys", "latent attention")
LABELLED = 3


def kind(shape: HeadShape) -> str:
    """Which of three kinds of attention a row has."""
    return KINDS[2] if shape.latent else KINDS[1] if shape.grouped else KINDS[0]


def draw_survey(models: Sequence[HeadShape], title: str) -> Figure:
    """Two panels over the width d: H r / d with the rule H = d/r as a line, and r / d with lines of equal r."""
    figure, axes = canvas(1, 2, size=(5.8, 4.2))
    ratio, share = axes[0]
    for name, colour, marker in zip(KINDS, COLOURS, MARKERS, strict=False):
        rows = [shape for shape in models if kind(shape) == name]
        style = {"color": colour, "marker": marker, "s": 16, "alpha": 0.5, "linewidths": 0}
        widths = [shape.width for shape in rows]
        ratio.scatter(widths, [s.heads_times_rank_over_width for s in rows], label=f"{name} ({len(rows)})", **style)
        share.scatter(widths, [s.rank_over_width for s in rows], **style)
    ratio.axhline(1, color="black", linewidth=0.8)
    _label_extremes(ratio, models)
    smallest, largest = min(s.width for s in models), max(s.width for s in models)
    for rank in (32, 64, 128, 256):
        share.plot([max(rank, smallest), largest], [rank / max(rank, smallest), rank / largest], color="grey", lw=0.6)
        share.annotate(f"r={rank}", (largest, rank / largest), xytext=(3, 0), textcoords="offset points", size=7)
    ratio.set(xscale="log", yscale="log", xlabel="width d", ylabel="H r / d")
    ratio.set_yticks([0.5, 1, 2, 4, 8], ["0.5", "1", "2", "4", "8"])
    ratio.minorticks_off()
    share.set(xscale="log", yscale="log", xlabel="width d", ylabel="r / d: share of the width one head compares")
    ratio.legend(loc="upper left", fontsize=8)
    heading(figure, title)
    return figure


def _label_extremes(axis: object, models: Sequence[HeadShape]) -> None:
    distinct = {
        (shape.width, shape.heads_times_rank_over_width): shape
        for shape in sorted(models, key=lambda shape: (-len(shape.model_type), shape.model_type))
    }
    ordered = sorted(distinct.values(), key=lambda shape: shape.heads_times_rank_over_width)
    for shape in (*ordered[:2], *ordered[-LABELLED:]):
        axis.annotate(  # type: ignore[attr-defined]
            shape.model_type,
            (shape.width, shape.heads_times_rank_over_width),
            xytext=(4, 3),
            textcoords="offset points",
            size=7,
        )
