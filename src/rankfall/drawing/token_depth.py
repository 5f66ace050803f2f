"""Token rank by depth of a real model: four measures against the layer, the model beside its controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankfall.models.depth.rows import DepthRow

PANELS = (
    ("effective_rank", "effective rank"),
    ("relative_mu", "relative mu"),
    ("mean_abs_cosine", "mean |cosine|"),
    ("min_singular_value", "smallest singular value"),
)


def draw_token_depth(rows: Sequence[DepthRow], controls: Mapping[str, Sequence[DepthRow]], title: str) -> Figure:
    """The unit view of the model (with its interval over texts) and of each control, at block boundaries."""
    figure, axes = canvas(2, 2, size=(5.0, 3.3))
    layers = [row.layer for row in rows]
    for panel, (measure, label) in zip(axes.flat, PANELS, strict=True):
        for (name, others), colour in zip(controls.items(), COLOURS[1:], strict=False):
            values = [row.values["unit"][measure] for row in others]
            panel.plot([row.layer for row in others], values, "--", color=colour, label=name.replace("_", " "))
        panel.plot(
            layers, [row.values["unit"][measure] for row in rows], "-o", color=COLOURS[0], markersize=4, label="model"
        )
        spans = [row.interval["unit"][measure] if row.interval is not None else None for row in rows]
        if all(span is not None for span in spans):
            low, high = zip(*(span for span in spans if span is not None), strict=True)
            panel.fill_between(layers, low, high, color=COLOURS[0], alpha=0.2, linewidth=0)
        panel.set_xlabel("layer")
        panel.set_ylabel(label)
        panel.xaxis.get_major_locator().set_params(integer=True)
        panel.set_ylim(bottom=0)
    axes[0, 0].legend(fontsize=8)
    figure.suptitle(title)
    return figure


def draw_views(rows: Sequence[DepthRow], title: str) -> Figure:
    """Effective rank of all three views, with and without sinks: where raw numbers mislead."""
    figure, axes = canvas(1, 1, size=(8.0, 3.8))
    panel = axes[0, 0]
    layers = [row.layer for row in rows]
    for view, colour, marker in zip(("unit", "raw", "centred"), COLOURS, MARKERS, strict=False):
        values = [row.values[view]["effective_rank"] for row in rows]
        panel.plot(layers, values, "-", marker=marker, color=colour, markersize=4, label=view)
        without = [(row.layer, row.without_sinks[view]["effective_rank"]) for row in rows if row.without_sinks]
        if without:
            panel.plot(*zip(*without, strict=True), ":", color=colour, linewidth=2, label=f"{view}, sinks left out")
    panel.set_xlabel("layer")
    panel.set_ylabel("effective rank")
    panel.set_ylim(bottom=0)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    figure.suptitle(title)
    return figure
