"""Pictures of attention: maps of all heads, where the mass rests, and how large logits are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.drawing.canvas import COLOURS, canvas, heading
from rankfall.models.thresholds import THRESHOLDS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

# A head that writes more than this many fair shares is drawn as this many.
MOST_SHARES = 3.0
WIDE = 12


def draw_attention_maps(heads: pd.DataFrame, title: str) -> Figure:
    """Three maps of heads by layer: entropy, mass on the first token or a learned sink, what they write. A cross
    marks a head that does nothing."""
    shown, label = placed(heads[heads["kind"] == "self"] if (heads["kind"] == "self").any() else heads)
    first, last, count = int(shown["place"].min()), int(shown["place"].max()), int(shown["head"].max()) + 1
    layers = last - first + 1
    size = (max(4.2, 0.22 * layers + 2), max(2.6, 0.22 * count + 1.2))
    # Deep models have wide maps: one below the other.
    figure, axes = canvas(3, 1, size=size) if layers > WIDE else canvas(1, 3, size=size)
    edges = (first - 0.5, last + 0.5, -0.5, count - 0.5)
    per_layer = shown.groupby("place")["head"].transform("size")
    panels: tuple[tuple[str, Any, float, str], ...] = (
        ("entropy, of what the mask allows", shown["relative_entropy"], 1.0, "viridis"),
        ("mass on first token or sink", shown["first_token_mass"] + shown["sink_mass"], 1.0, "magma"),
        (
            "output, in fair shares",
            (shown["output_share"] * per_layer).clip(upper=MOST_SHARES),
            MOST_SHARES,
            "cividis",
        ),
    )
    idle = shown[shown["does_nothing"].notna()]
    for panel, (says, values, most, colours) in zip(axes.flat, panels, strict=True):
        grid = np.full((count, layers), np.nan)
        grid[shown["head"], shown["place"] - first] = values.astype(float)
        panel.grid(False)
        image = panel.imshow(grid, aspect="auto", origin="lower", vmin=0, vmax=most, cmap=colours, extent=edges)
        figure.colorbar(image, ax=panel, label=says)
        if len(idle):
            panel.plot(idle["place"], idle["head"], "x", color=COLOURS[1], markersize=5, label="does nothing")
        panel.set_xlabel(label)
        panel.set_ylabel("head")
        for axis in (panel.xaxis, panel.yaxis):
            axis.get_major_locator().set_params(integer=True)
    if len(idle):
        axes[0, 0].legend(fontsize=8, loc="lower left", bbox_to_anchor=(0.0, 1.0))
    heading(figure, title)
    return figure


PREDICTED = {
    "predicted_first_token_uniform": ("mask alone predicts", "-."),
    "predicted_first_token_rotary": ("mask and rotary positions predict", ":"),
}
"""What is drawn beside the mass on the first token, by column of the masks' table."""


def draw_attention_depth(heads: pd.DataFrame, title: str, masks: pd.DataFrame | None = None) -> Figure:
    """By layer: the mass on the first token of every head and its mean, with that on learned sinks, and what the mask
    alone would give; and the logits: medians over heads of their quantiles, and the largest of each head."""
    shown, label = placed(heads[heads["kind"] == "self"] if (heads["kind"] == "self").any() else heads)
    figure, axes = canvas(1, 2, size=(5.4, 3.8))
    mass, logits = axes[0]
    by_place = shown.groupby("place")
    mass.plot(
        shown["place"], shown["first_token_mass"], ".", color=COLOURS[0], alpha=0.4, label="first token, a head"
    )
    means = by_place["first_token_mass"].mean()
    mass.plot(means.index, means, "-", color=COLOURS[0], label="first token, mean")
    if bool((shown["sink_mass"] > 0).any()):
        means = by_place["sink_mass"].mean()
        mass.plot(means.index, means, "--", color=COLOURS[1], label="learned sink, mean")
    if masks is not None and label == "layer":
        for column, (name, style) in PREDICTED.items():
            known = masks.dropna(subset=[column]) if column in masks else masks[:0]
            if len(known):
                mass.plot(known["layer"], known[column], style, color="black", linewidth=1.2, label=name)
    mass.axhline(THRESHOLDS.attention_sink_mass, linestyle=":", color="grey", linewidth=1)
    mass.set_ylim(0, 1)
    mass.set_ylabel("mass")
    mass.legend(fontsize=8)
    if bool(shown["logit_max"].notna().any()):
        middle = by_place[["logit_q01", "logit_q25", "logit_q50", "logit_q75", "logit_q99"]].median()
        for low, high, alpha in (("logit_q01", "logit_q99", 0.15), ("logit_q25", "logit_q75", 0.3)):
            logits.fill_between(middle.index, middle[low], middle[high], color=COLOURS[2], alpha=alpha, linewidth=0)
        logits.plot(middle.index, middle["logit_q50"], "-", color=COLOURS[2], label="median; bands 50 %, 98 %")
        logits.plot(shown["place"], shown["logit_max"], ".", color=COLOURS[1], alpha=0.6, label="largest of a head")
        logits.legend(fontsize=8)
    logits.set_ylabel("logit")
    for panel in axes[0]:
        panel.set_xlabel(label)
        panel.xaxis.get_major_locator().set_params(integer=True)
    heading(figure, title)
    return figure


def placed(heads: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Heads with their `place` on an axis and its label: the layer; where a layer number stands for several modules,
    as in a model of two stacks, the order in which they run."""
    if "module" not in heads:
        return heads.assign(place=heads["layer"]), "layer"
    modules = heads[["layer", "module"]].drop_duplicates()
    if modules["layer"].is_unique:
        return heads.assign(place=heads["layer"]), "layer"
    order = {pair: at for at, pair in enumerate(modules.itertuples(index=False, name=None), 1)}
    pairs = zip(heads["layer"], heads["module"], strict=True)
    return heads.assign(place=[order[pair] for pair in pairs]), "attention module, in order"
