"""Pictures of what heads need: a map of needed ranks, and the loss of a model whose heads are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rankfall.drawing.canvas import COLOURS, canvas, heading
from rankfall.drawing.head_map import HeadMap

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.models.heads.cut_curve import CutCurve, CutPoint

# Layers that are drawn thick enough to be told from the others: those that cost most.
NAMED_LAYERS = 3


def draw_needed_ranks(needs: pd.DataFrame, title: str) -> Figure:
    """A map of layers and heads, and how many heads need at most so many directions, beside random weights."""
    head_map, widest = HeadMap.of(needs), int(needs["head_dim"].max())
    figure, axes = canvas(1, 2, size=head_map.size(4.5, 3.2))
    head_map.draw(figure, axes[0, 0], needs["needed_rank"], widest, f"needed rank, of {widest}")
    ranks = np.arange(widest + 1)
    columns = {"model": "needed_rank", "random weights": "random_needed_rank"}
    for (whose, column), colour in zip(columns.items(), COLOURS, strict=False):
        found = needs[column].dropna().to_numpy(dtype=float) if column in needs else np.array([])
        if len(found):
            shares = (found[None] <= ranks[:, None]).mean(axis=1)
            axes[0, 1].step(ranks, shares, where="post", color=colour, label=whose)
    axes[0, 1].set_xlabel("directions")
    axes[0, 1].set_ylabel("share of heads that need no more")
    axes[0, 1].set_ylim(0, 1.02)
    axes[0, 1].legend(fontsize=8)
    heading(figure, title)
    return figure


def draw_cut_curve(curve: CutCurve, title: str) -> Figure:
    """The loss, or the change of the output, against the directions kept: all heads, and each layer alone."""
    figure, axes = canvas(1, 2, size=(5.2, 3.8))
    by_loss = curve.loss is not None

    def value(point: CutPoint) -> float:
        return point.loss if by_loss and point.loss is not None else point.output_change

    own = curve.loss if curve.loss is not None else 0.0
    layers: dict[tuple[int | None, str | None], list[CutPoint]] = {}
    for point in curve.alone:
        layers.setdefault((point.layer, point.module), []).append(point)
    alone = len({layer for layer, _ in layers}) == len(layers)
    names = {key: f"layer {key[0]}" if alone else f"layer {key[0]} ({key[1]})" for key in layers}
    worst = sorted(layers, key=lambda key: -max(value(point) for point in layers[key]))[:NAMED_LAYERS]
    for panel in axes[0]:
        for points in (layers[key] for key in layers if key not in worst):
            panel.plot(*_line(points, curve, own, value), "-", color="grey", linewidth=0.7, alpha=0.6)
        for key, colour in zip(worst, COLOURS[1:], strict=False):
            panel.plot(*_line(layers[key], curve, own, value), "-", color=colour, linewidth=1.2, label=names[key])
        panel.set_xscale("log", base=2)
        ranks = [point.rank for point in curve.together]
        panel.set_xticks(ranks, [str(rank) for rank in ranks])
        panel.set_xlabel("directions kept in every head")
    axes[0, 0].plot(
        *zip(*((point.rank, value(point)) for point in curve.together), strict=True),
        "-o",
        color=COLOURS[0],
        linewidth=2.2,
        markersize=4,
        label="all heads",
    )
    label = "loss, nats per token" if by_loss else "change of the output"
    axes[0, 0].set_ylabel(label)
    axes[0, 1].set_ylabel(f"{label}, one layer at a time")
    for panel in axes[0]:
        panel.axhline(own, linestyle=":", color="black", linewidth=1)
        panel.legend(fontsize=8)
    heading(figure, title)
    return figure


def _line(
    points: Sequence[CutPoint], curve: CutCurve, own: float, value: Callable[[CutPoint], float]
) -> tuple[list[int], list[float]]:
    """A layer's points and its end, where nothing is cut."""
    return [*(one.rank for one in points), curve.head_dim], [*(value(one) for one in points), own]
