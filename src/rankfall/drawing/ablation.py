"""What holds the rank up: relative mu against depth for each way of taking the blocks apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SMALLEST = 1e-17


def draw_ablation(rows: Sequence[Mapping[str, Any]], title: str) -> Figure:
    """One panel per scaling; the full model in both. Geometric mean over texts."""
    figure, axes = canvas(1, 2, size=(5.4, 3.8), sharey=True)
    for panel, scaling in zip(axes[0], ("matched", "raw"), strict=True):
        wanted = [row for row in rows if row["scaling"] == scaling or row["variant"] == "full model"]
        for number, variant in enumerate(dict.fromkeys(row["variant"] for row in wanted)):
            points: dict[int, list[float]] = {}
            for row in wanted:
                plain = row.get("mask") is None and row.get("temperature", 1.0) == 1.0
                if row["variant"] == variant and plain and row["relative_mu"] is not None:
                    points.setdefault(int(row["layer"]), []).append(max(float(row["relative_mu"]), SMALLEST))
            layers = sorted(points)
            values = [float(np.exp(np.mean(np.log(points[layer])))) for layer in layers]
            panel.plot(
                layers, values, "-", marker=MARKERS[number], color=COLOURS[number], markersize=4, label=variant
            )
        panel.set_yscale("log")
        panel.set_xlabel("layer")
        panel.set_title("scale-matched" if scaling == "matched" else "raw")
        panel.xaxis.get_major_locator().set_params(integer=True)
    axes[0, 0].set_ylabel("relative mu")
    axes[0, 0].legend(fontsize=8)
    figure.suptitle(title)
    return figure
