"""Pictures of audits: token rank by depth, heads, blocks taken apart, and two models over each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading, literal, whole_ticks
from rankfall.drawing.head_map import HeadMap
from rankfall.models.thresholds import THRESHOLDS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.models.depth.rows import DepthRow

# What is smaller counts as zero, and is drawn here on a logarithmic axis.
SMALLEST = 1e-17
PANELS = (
    ("effective_rank", "effective rank"),
    ("energy_rank", "energy rank"),
    ("first_direction_share", "share of the first direction"),
    ("relative_mu", "relative mu"),
    ("mean_abs_cosine", "mean |cosine|"),
    ("min_singular_value", "smallest singular value"),
)
RANKS = ("effective_rank", "energy_rank")


def draw_token_depth(rows: Sequence[DepthRow], controls: Mapping[str, Sequence[DepthRow]], title: str) -> Figure:
    """The unit view of the model (with its interval over texts) and of each control, at block boundaries."""
    figure, axes = canvas(2, 3, size=(4.4, 3.3))
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
        whole_ticks(panel.xaxis)
        panel.set_ylim(bottom=0)
    axes[0, 0].legend(fontsize=8)
    heading(figure, title)
    return figure


def draw_views(rows: Sequence[DepthRow], title: str) -> Figure:
    """Effective and energy rank of all views, with and without massive tokens: where raw numbers mislead."""
    figure, axes = canvas(1, 2, size=(5.4, 3.8))
    layers = [row.layer for row in rows]
    for panel, measure in zip(axes[0], RANKS, strict=True):
        for view, colour, marker in zip(("unit", "raw", "centred", "centred_unit"), COLOURS, MARKERS, strict=False):
            values = [row.values[view][measure] for row in rows]
            panel.plot(layers, values, "-", marker=marker, color=colour, markersize=4, label=view)
            without = [(row.layer, row.without_sinks[view][measure]) for row in rows if row.without_sinks]
            if without:
                label = f"{view}, massive tokens left out"
                panel.plot(*zip(*without, strict=True), ":", color=colour, linewidth=2, label=label)
        panel.set_xlabel("layer")
        panel.set_ylabel(measure.replace("_", " "))
        panel.set_ylim(bottom=0)
        whole_ticks(panel.xaxis)
    axes[0, 1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    heading(figure, title)
    return figure


def draw_head_ranks(heads: pd.DataFrame, title: str) -> Figure:
    """Two maps of heads: bright heads spread their scores over many directions."""
    head_map, widest = HeadMap.of(heads), int(heads["head_dim"].max())
    figure, axes = canvas(1, 2, size=head_map.size(4.5, 3.2))
    for panel, measure in zip(axes[0], RANKS, strict=True):
        head_map.draw(figure, panel, heads[f"qk_{measure}"], widest, f"{measure.replace('_', ' ')}, of {widest}")
    heading(figure, title)
    return figure


def draw_ablation(rows: pd.DataFrame, title: str) -> Figure:
    """One panel per scaling; the full model in both. Tokens of length one, the median over texts, mask and
    temperature unchanged; below the dotted line a variant has collapsed."""
    figure, axes = canvas(1, 2, size=(5.4, 3.8), sharey=True)
    plain = rows[rows["unit_relative_mu"].notna()]
    if "mask" in plain:
        plain = plain[plain["mask"].isna()]
    if "temperature" in plain:
        plain = plain[plain["temperature"].fillna(1.0) == 1.0]
    logs = np.log(plain["unit_relative_mu"].astype(float).clip(lower=SMALLEST))
    for panel, scaling in zip(axes[0], ("matched", "raw"), strict=True):
        wanted = plain[(plain["scaling"] == scaling) | (plain["variant"] == "full model")]
        for number, variant in enumerate(wanted["variant"].drop_duplicates()):
            mine = wanted[wanted["variant"] == variant]
            values = np.exp(logs[mine.index].groupby(mine["layer"]).median())
            panel.plot(
                values.index, values, "-", marker=MARKERS[number], color=COLOURS[number], markersize=4, label=variant
            )
        panel.axhline(THRESHOLDS.collapsed_relative_mu, linestyle=":", color="grey", linewidth=1)
        panel.set_yscale("log")
        panel.set_xlabel("layer")
        panel.set_title("scale-matched" if scaling == "matched" else "raw")
        whole_ticks(panel.xaxis)
    axes[0, 0].set_ylabel("relative mu")
    axes[0, 0].legend(fontsize=8)
    heading(figure, title)
    return figure


def draw_comparison(table: pd.DataFrame) -> Figure:
    """The same measures over relative depth, one line per model, and per stack of blocks where there is a column
    `stack`; `table` has a row per model and layer."""
    if "stack" in table:
        table = table.assign(model=table["model"] + ", " + table["stack"])
    figure, axes = canvas(2, 3, size=(4.4, 3.2))
    for axis, (measure, label) in zip(axes.flat, PANELS, strict=True):
        for name, colour in zip(table["model"].drop_duplicates(), COLOURS, strict=False):
            mine = table[table["model"] == name]
            axis.plot(mine["depth"], mine[measure], marker="o", markersize=3, color=colour, label=literal(name))
        axis.set_xlabel("depth")
        axis.set_ylabel(label)
    axes[0, 0].legend(fontsize=8)
    return figure
