"""Effective rank of every head's query/key form, head by layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from rankfall.drawing.canvas import canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from rankfall.models.heads.ranks import HeadRecord


def draw_head_ranks(heads: Sequence[HeadRecord], title: str) -> Figure:
    """A map of heads: bright heads spread their scores over many directions."""
    layers = max(head.layer for head in heads) + 1
    count = max(head.head for head in heads) + 1
    grid = np.full((count, layers), np.nan)
    for head in heads:
        grid[head.head, head.layer] = head.qk_effective_rank
    figure, axes = canvas(1, 1, size=(max(4.5, 0.22 * layers + 2), max(3.2, 0.22 * count + 1.2)))
    panel = axes[0, 0]
    panel.grid(False)
    widest = max(head.head_dim for head in heads)
    image = panel.imshow(grid, aspect="auto", origin="lower", vmin=0, vmax=widest, cmap="viridis")
    figure.colorbar(image, ax=panel, label=f"effective rank, of {widest}")
    panel.set_xlabel("layer")
    panel.set_ylabel("head")
    for axis in (panel.xaxis, panel.yaxis):
        axis.get_major_locator().set_params(integer=True)
    figure.suptitle(title)
    return figure
