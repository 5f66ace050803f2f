"""Pictures of attention: maps of all heads, where the mass rests, and how large logits are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, canvas, heading, whole_ticks
from rankfall.drawing.head_map import HeadMap, placed
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
    head_map = HeadMap.of(_self_attention(heads))
    shown, size = head_map.heads, head_map.size(4.2, 2.6)
    # Deep models have wide maps: one below the other.
    figure, axes = canvas(3, 1, size=size) if head_map.layers > WIDE else canvas(1, 3, size=size)
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
        head_map.draw(figure, panel, values, most, says, colours)
        if len(idle):
            panel.plot(idle["place"], idle["head"], "x", color=COLOURS[1], markersize=5, label="does nothing")
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
    shown, label = placed(_self_attention(heads))
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
        whole_ticks(panel.xaxis)
    heading(figure, title)
    return figure


def _self_attention(heads: pd.DataFrame) -> pd.DataFrame:
    """Heads that look at their own tokens, where there are any."""
    own = heads["kind"] == "self"
    return heads[own] if own.any() else heads
