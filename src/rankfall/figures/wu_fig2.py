"""Paper B, figure 2 with random weights: mu against depth for four masks, from pure attention to the full model."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.rate import measured_rate
from rankfall.dynamics.step import PURE_ATTENTION, FeedForward, Rule, full_block, random_tokens, step
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe, generator_for
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.masks import parse_mask
from rankfall.measures.base import measure
from rankfall.mechanism.heads import Heads
from rankfall.norms import LayerNorm
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[Scale, dict[str, int]] = {
    "smoke": {"tokens": 16, "dim": 8, "layers": 64, "seeds": 2, "width": 2},
    "quick": {"tokens": 32, "dim": 32, "layers": 128, "seeds": 5, "width": 4},
    "paper": {"tokens": 128, "dim": 64, "layers": 128, "seeds": 10, "width": 8},
}
FLOAT32 = "+ LayerNorm in float32"
RULES = {
    "pure attention": PURE_ATTENTION,
    "+ LayerNorm": Rule(LayerNorm()),
    "+ LayerNorm, residual": Rule(LayerNorm(), residual=1.0),
}
VARIANTS = (*RULES, "full model")
# mu above this share of its start, after all layers, counts as kept.
KEPT = 1e-2
STRAIGHT = 0.99


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Random weights, drawn anew in every layer; the exact route for all but the full model, which keeps its rank."""
    size = SIZES[scale]
    masks = four_masks(size["width"])
    curves: dict[tuple[str, str], Tensor] = {}
    for done, variant in enumerate(VARIANTS):
        progress(variant, done / len(VARIANTS))
        found = _full_model(masks, size) if variant == "full model" else _exact(masks, size, variant)
        curves |= {(variant, mask): log10_mu for mask, log10_mu in zip(masks, found, strict=True)}
    in_float32 = _float32_with_norm(masks, size)
    curves |= {(FLOAT32, mask): log10_mu for mask, log10_mu in zip(masks, in_float32, strict=True)}
    return FigureOutcome(
        points=[],
        claims=_claims(curves, masks),
        tables={"curves": curve_rows(curves, "variant", "mask")},
        draw=lambda: _draw(curves, masks),
        notes=(
            f"{size['tokens']} tokens of dimension {size['dim']}, medians over {size['seeds']} seeds; "
            "weights new in every layer, Gaussian of variance 1/d; orthogonal values for pure attention.",
            _told("The full model, mu over its start after all layers", curves, "full model", masks)
            + ". Its feed-forward layers draw tokens together as well.",
            "Dotted: the run with LayerNorm as ordinary float32 code shows it; it levels off at rounding noise.",
            "Pretrained weights belong to the same figure: `rankfall reproduce wu/fig2-pretrained`.",
        ),
    )


def four_masks(width: int) -> list[str]:
    """Two global masks and, of this width, two local ones."""
    return ["complete", "causal", f"window:{width}", f"causal-window:{width}"]


def median_curves(
    masks: Sequence[str], size: dict[str, int], recipe: WeightRecipe, rule: Rule = PURE_ATTENTION, **weights: Any
) -> list[Tensor]:
    """Median log10 mu over seeds, (layers + 1,), one per mask, all in one batch; exact at any depth."""
    seeds = list(range(size["seeds"]))
    start = random_tokens(seeds, size["tokens"], size["dim"]) * size["dim"] ** 0.5
    done = run_layers(
        start.repeat(len(masks), 1, 1),
        DrawnWeights(recipe, seeds * len(masks), **weights),
        [parse_mask(mask) for mask in masks for _ in seeds],
        size["layers"],
        rule,
        measures=(),
        ordinary=False,
    )
    medians = done.columns["log10_mu"].unflatten(1, (len(masks), len(seeds))).median(dim=-1).values
    return list(medians.unbind(dim=1))


def curve_rows(curves: Mapping[tuple[Any, Any], Tensor], first: str, second: str) -> list[dict[str, Any]]:
    """A record per curve and layer; `first` and `second` say what the curves are told apart by."""
    return [
        {first: key[0], second: key[1], "layer": layer, "log10_mu": float(value)}
        for key, curve in curves.items()
        for layer, value in enumerate(curve)
    ]


def _exact(masks: list[str], size: dict[str, int], variant: str) -> list[Tensor]:
    value = "orthogonal" if variant == "pure attention" else "gaussian"
    return median_curves(masks, size, WeightRecipe(size["dim"], value=value, per_layer=True), RULES[variant])


def _full_model(masks: list[str], size: dict[str, int]) -> list[Tensor]:
    seeds = list(range(size["seeds"]))
    weights = DrawnWeights(WeightRecipe(size["dim"], value="gaussian", per_layer=True), seeds)
    rule = Rule(LayerNorm(), residual=1.0)
    found = []
    for mask in masks:
        tokens = random_tokens(seeds, size["tokens"], size["dim"]) * size["dim"] ** 0.5
        groups = MaskPlan(parse_mask(mask), len(seeds), size["tokens"]).at(0)
        curve = [measure(tokens, ["mu"])["mu"]]
        for layer in range(size["layers"]):
            feed_forward = FeedForward.random(size["dim"], generator_for(layer, 7))
            tokens = full_block(tokens, weights.at(layer), feed_forward, groups, rule)
            curve.append(measure(tokens, ["mu"])["mu"])
        found.append(torch.stack(curve).log10().median(dim=1).values)
    return found


def _float32_with_norm(masks: list[str], size: dict[str, int]) -> list[Tensor]:
    """The same run the ordinary way in float32, for the first seed: what most code would plot."""
    weights = DrawnWeights(WeightRecipe(size["dim"], value="gaussian", per_layer=True), [0])
    found = []
    for mask in masks:
        tokens = (random_tokens([0], size["tokens"], size["dim"]) * size["dim"] ** 0.5).float()
        curve = [measure(tokens, ["mu"])["mu"]]
        for layer in range(size["layers"]):
            heads = weights.at(layer)
            single = Heads(heads.query.float(), heads.key.float(), heads.value.float())
            tokens = step(tokens, single, parse_mask(mask), Rule(LayerNorm()))
            curve.append(measure(tokens, ["mu"])["mu"])
        found.append(torch.cat(curve).clamp_min(1e-30).log10())
    return found


def _told(what: str, curves: dict[tuple[str, str], Tensor], variant: str, masks: list[str]) -> str:
    falls = {mask: float(curves[variant, mask][-1] - curves[variant, mask][0]) for mask in masks}
    return f"{what}: " + ", ".join(f"10^{fall:.3g} ({mask})" for mask, fall in falls.items())


def _claims(curves: dict[tuple[str, str], Tensor], masks: list[str]) -> list[Claim]:
    pure = {mask: curves["pure attention", mask] for mask in masks}
    rates = {mask: measured_rate(range(len(curve)), (curve * math.log(10)).tolist()) for mask, curve in pure.items()}
    fits = {mask: fit for mask, fit in rates.items() if fit is not None}
    local = [mask for mask in masks if mask != "complete"]
    depth = {mask: float(curve[-1]) for mask, curve in pure.items()}
    order = ["complete", "causal", masks[3], masks[2]]
    normed = [float(curves["+ LayerNorm", mask][-1] - curves["+ LayerNorm", mask][0]) for mask in masks]
    return [
        Claim(
            f"pure attention: log mu falls along a straight line (R^2 > {STRAIGHT}) under all but the complete mask",
            all(fits[mask].law == "exponential" and fits[mask].r_squared > STRAIGHT for mask in local),
            ", ".join(f"{mask} R^2 {fits[mask].r_squared:.4f}" for mask in local),
        ),
        Claim(
            "pure attention: the complete mask collapses faster than exponentially",
            fits["complete"].law in ("cubic", "equal"),
            f"law {fits['complete'].law}, order {fits['complete'].order:.2f}",
        ),
        Claim(
            "pure attention: order of collapse complete, causal, causal window, window",
            all(depth[one] < depth[other] for one, other in itertools.pairwise(order)),
            ", ".join(f"{mask} 10^{depth[mask]:.4g}" for mask in order),
        ),
        Claim(
            "LayerNorm alone keeps random weights from collapsing",
            all(fall > math.log10(KEPT) for fall in normed),
            _told("mu over its start after all layers", curves, "+ LayerNorm", masks),
        ),
    ]


def _draw(curves: dict[tuple[str, str], Tensor], masks: list[str]) -> Figure:
    figure, axes = canvas(1, len(VARIANTS), size=(3.6, 3.6))
    for axis, variant in zip(axes[0], VARIANTS, strict=True):
        lowest = -1.0
        for mask, colour in zip(masks, COLOURS, strict=False):
            curve: Any = curves[variant, mask]
            axis.plot(range(1, len(curve)), curve[1:], color=colour, label=mask)
            if variant == "+ LayerNorm":
                axis.plot(range(1, len(curve)), curves[FLOAT32, mask][1:], ":", color=colour)
            if mask != "complete":
                lowest = min(lowest, float(curve.min()))
        axis.set_xscale("log")
        axis.set_ylim(lowest * 1.1, max(2.0, float(curves[variant, masks[0]][0]) + 1))
        axis.set_title(variant)
        axis.set_xlabel("layer")
    axes[0, 0].set_ylabel("log10 of mu")
    # Where no curve passes at any scale: a full model falls last.
    axes[0, -1].legend(fontsize=8, loc="lower left")
    return figure


REPRODUCTION = Reproduction("wu/fig2", "mu against depth with random weights, four masks", ("B-fig2", "B-thm1"), run)
