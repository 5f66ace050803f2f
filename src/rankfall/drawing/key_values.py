"""Keys and values of a model as one picture: the latents that would hold them, layer by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading, whole_ticks
from rankfall.drawing.head_map import placed

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

CURVES = {"by_weights": "by weights", "on_tokens": "on the tokens read", "on_others": "chosen on other passages"}
NEEDED = {
    "weights_99": "99 % by weights",
    "tokens_99": "99 % on the tokens read",
    "tokens_90": "90 % on the tokens read",
    "others_90": "90 %, chosen on other passages",
}


def draw_key_values(
    layers: pd.DataFrame, energy: pd.DataFrame, overlap: Sequence[Sequence[float | None]], title: str
) -> Figure:
    """The energy that a latent of each size keeps, the latent that each layer needs, and what layers share."""
    layers, axis_label = placed(layers)
    figure, axes = canvas(1, 3, size=(4.8, 3.8))
    kept, needed, shared = axes[0]
    for (name, label), colour in zip(CURVES.items(), COLOURS, strict=False):
        known = energy[energy[name].notna()]
        if known.empty:
            continue
        by_size = known.assign(value=known[name].astype(float)).groupby("latent")["value"]
        sizes = np.array(sorted(known["latent"].unique()))
        kept.plot(sizes, by_size.median(), "-", color=colour, label=f"{label}, median layer")
        kept.fill_between(sizes, by_size.min(), by_size.max(), color=colour, alpha=0.15, linewidth=0)
    kept.set_xscale("log", base=2)
    kept.set(xlabel="numbers in the latent", ylabel="share of the energy kept", ylim=(0, 1.02))
    kept.axvline(float(layers["cached"].median()), color="grey", linewidth=0.8, linestyle=":", label="cached now")
    kept.legend(fontsize=7, loc="upper left")
    for (name, label), colour, marker in zip(NEEDED.items(), COLOURS, MARKERS, strict=False):
        known = layers[layers[name].notna()]
        if not known.empty:
            style = {"color": colour, "marker": marker, "markersize": 3, "label": label}
            needed.plot(known["place"], known[name].astype(float), "-", **style)
    needed.set(xlabel=axis_label, ylabel="numbers that a latent needs")
    needed.set_ylim(0, 1.35 * float(layers[list(NEEDED)].max().max()))
    whole_ticks(needed.xaxis)
    needed.legend(fontsize=7, ncols=2, loc="upper center")
    grid = np.array([[np.nan if one is None else one for one in row] for row in overlap], dtype=float)
    shared.grid(False)
    first, last = int(layers["place"].min()) - 0.5, int(layers["place"].min()) + len(grid) - 0.5
    edges = (first, last, first, last)
    image = shared.imshow(grid, origin="lower", vmin=0, vmax=1, cmap="viridis", aspect="auto", extent=edges)
    figure.colorbar(image, ax=shared, label="share of its own latent's energy")
    shared.set(xlabel="layer whose latent is used", ylabel="layer whose keys and values")
    whole_ticks(shared.xaxis, shared.yaxis)
    heading(figure, title)
    return figure
