"""Paper B, figure 3: the temperature d_QK slows the collapse, how much depends on the mask and on the depth."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from torch import Tensor

from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.dynamics.weights import WeightRecipe
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.wu_fig2 import curve_rows, four_masks, median_curves
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[Scale, dict[str, int]] = {
    "smoke": {"tokens": 16, "dim": 16, "layers": 32, "seeds": 4, "width": 2},
    "quick": {"tokens": 32, "dim": 32, "layers": 64, "seeds": 10, "width": 4},
    "paper": {"tokens": 128, "dim": 64, "layers": 128, "seeds": 10, "width": 8},
}
TEMPERATURES = (1 / 64, 1.0, 64.0)
"""d_QK: scores are <q, k> / sqrt(d_QK)."""
NAMES = ("1/64", "1", "64")
EARLY = 4


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Pure attention with orthogonal values, so that nothing but attention changes mu."""
    size = SIZES[scale]
    masks = four_masks(size["width"])
    progress("all masks and temperatures", 0.0)
    curves = _curves(masks, size)
    return FigureOutcome(
        points=[],
        claims=_claims(curves, masks),
        tables={"curves": curve_rows(curves, "mask", "d_qk")},
        draw=lambda: _draw(curves, masks),
        notes=(
            f"{size['tokens']} tokens of dimension {size['dim']} and length sqrt(d), medians over "
            f"{size['seeds']} seeds; Gaussian query/key weights of variance 1/d, orthogonal values.",
            "In the end every temperature has the same rate, the second eigenvalue of uniform attention. Sharp "
            "attention delays the fall, then merges whole groups of tokens at once and may overtake.",
        ),
    )


def _curves(masks: list[str], size: dict[str, int]) -> dict[tuple[str, float], Tensor]:
    """Median log10 mu over seeds for every mask and temperature, all in one batch."""
    cells = [(mask, temperature) for mask in masks for temperature in TEMPERATURES]
    recipe = WeightRecipe(size["dim"])
    relative = [math.sqrt(temperature / recipe.head_rank) for _, temperature in cells for _ in range(size["seeds"])]
    medians = median_curves([mask for mask, _ in cells], size, recipe, temperatures=relative)
    return dict(zip(cells, medians, strict=True))


def _claims(curves: dict[tuple[str, float], Tensor], masks: list[str]) -> list[Claim]:
    cold, _, hot = TEMPERATURES
    gap = {mask: curves[mask, cold] - curves[mask, hot] for mask in masks}
    early = {mask: float(gap[mask][EARLY]) for mask in masks}
    late = {mask: float(gap[mask][-1] - gap[mask][-1 - EARLY]) for mask in masks}
    slower_early = all(
        float(curves[mask, one][EARLY]) > float(curves[mask, other][EARLY])
        for mask in masks
        for one, other in itertools.pairwise(TEMPERATURES)
    )
    exponential = [mask for mask in masks if mask != "complete"]
    (everyone, causal), (window, causal_window) = masks[:2], masks[2:]
    told = ", ".join(f"{mask} {early[mask]:.3g}" for mask in masks)
    return [
        Claim(
            f"a smaller temperature collapses more slowly in the first {EARLY} layers, under every mask",
            slower_early,
            f"gap in log10 mu between d_QK 1/64 and 64: {told}",
        ),
        Claim(
            "a smaller temperature is still behind at the last layer, under every mask",
            all(float(gap[mask][-1]) > 0 for mask in masks),
            ", ".join(f"{mask} {float(gap[mask][-1]):.3g}" for mask in masks),
        ),
        Claim(
            "the effect is larger for global masks than local ones: complete above window, causal above its window",
            early[everyone] > early[window] and early[causal] > early[causal_window],
            f"gap in log10 mu after {EARLY} layers: {told}",
        ),
        Claim(
            "the effect is larger in early layers than in late ones (masks whose collapse is exponential)",
            all(early[mask] > late[mask] for mask in exponential),
            f"gap gained in the first and last {EARLY} layers: "
            + ", ".join(f"{mask} {early[mask]:.3g} and {late[mask]:.1e}" for mask in exponential),
        ),
    ]


def _draw(curves: dict[tuple[str, float], Tensor], masks: list[str]) -> Figure:
    figure, axes = canvas(1, len(masks), size=(3.6, 3.6))
    for axis, mask in zip(axes[0], masks, strict=True):
        for temperature, name, colour in zip(TEMPERATURES, NAMES, COLOURS, strict=False):
            curve = curves[mask, temperature]
            axis.plot(range(1, len(curve)), curve[1:], color=colour, label=f"d_QK = {name}")
        axis.set_xscale("log")
        if mask == "complete":
            axis.set_xlim(1, 10)
            axis.set_ylim(-120, 3)
        axis.set_title(mask)
        axis.set_xlabel("layer")
    axes[0, 0].set_ylabel("log10 of mu")
    axes[0, 0].legend(fontsize=8, loc="lower left")
    return figure


REPRODUCTION = Reproduction(
    "wu/fig3",
    "mu against depth for three temperatures and four masks",
    ("B-fig3",),
    run,
    columns={"d_qk": "temperature: scores are divided by its square root before the softmax"},
)
