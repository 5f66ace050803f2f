"""Beyond paper B: does each norm keep rank? Every listed norm, after the layer, before it and on both sides."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rankfall.catalogue import NORMS
from rankfall.drawing.canvas import COLOURS, canvas
from rankfall.dynamics.rate import measured_rate
from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.trajectory import Trajectory, run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.masks import parse_schedule
from rankfall.norms import Norm
from rankfall.progress import Progress, silent

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Of norms that scale each token two will do at the smallest scale.
FEW = ("none", "layer", "dyt", "layer-scaled")
SIZES: dict[Scale, dict[str, Any]] = {
    "smoke": {"tokens": 16, "width": 12, "layers": 60, "seeds": 1, "window": 3, "norms": FEW},
    "quick": {"tokens": 24, "width": 16, "layers": 160, "seeds": 3, "window": 3},
    "paper": {"tokens": 64, "width": 32, "layers": 1000, "seeds": 10, "window": 4},
}
# Where the norm stands, and the weight of the residual connection.
BLOCKS: tuple[tuple[str, str, float], ...] = (
    ("no residual", "post", 0.0),
    ("post", "post", 1.0),
    ("pre", "pre", 1.0),
    ("peri", "peri", 1.0),
)
# Relative mu below this is collapse, above that it is none; nothing may lie between them where a claim speaks.
COLLAPSED, KEPT = 1e-4, 1e-2
# What is kept beside what is lost, in the same number of layers.
APART = 5.0


Curve = tuple[str, str, str, Sequence[int], list[float]]
"""Block, norm, mask, layers and log10 of relative mu."""
MEASURED = ("log10_relative_mu", "effective_rank")


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """New random weights in every layer, orthogonal values; medians over seeds."""
    size = SIZES[scale]
    masks = ("complete", "causal", f"window:{size['window']}")
    wanted = [
        (block, Rule(norm, placement, residual))  # type: ignore[arg-type]
        for block, placement, residual in BLOCKS
        for norm in _norms(block, size.get("norms", NORMS.names))
    ]
    rows: list[dict[str, Any]] = []
    curves: list[Curve] = []
    for done, (block, rule) in enumerate(wanted):
        progress(f"{block}, {rule.norm}", done / len(wanted))
        trajectory = _simulated(size, masks, rule)
        for place, mask in enumerate(masks):
            samples = range(place * size["seeds"], (place + 1) * size["seeds"])
            medians = {name: trajectory.columns[name][:, samples].median(dim=1).values.tolist() for name in MEASURED}
            rows.append(
                {"block": block, "norm": str(rule.norm), "mask": mask}
                | {name: column[-1] for name, column in medians.items()}
                | {"rate": _rate(trajectory, samples), "scales": _scales(rule.norm, size["width"])}
            )
            curves.append((block, str(rule.norm), mask, trajectory.layers, medians["log10_relative_mu"]))
    return FigureOutcome(
        points=[],
        claims=_claims(rows, masks),
        tables={"norms": rows},
        draw=lambda: _draw(curves),
        notes=(
            f"{size['tokens']} tokens of width {size['width']}, {size['layers']} layers, {size['seeds']} seeds,"
            " attention alone: no feed-forward block, gains of one.",
        ),
    )


def _norms(block: str, names: Sequence[str]) -> list[Norm]:
    """The norms as they are by default, those of several examples that differ in more than an epsilon with each."""
    kinds = [NORMS[name] for name in names]
    found = [one for kind in kinds for one in kind.examples() if getattr(one, "epsilon", 0.0) == 0]
    # In front of the branch or on both sides no norm at all is the same as after it.
    return [one for one in found if not one.identity or block in ("no residual", "post")]


def _simulated(size: dict[str, Any], masks: tuple[str, ...], rule: Rule) -> Trajectory:
    """All masks and seeds as one batch; weights and starting tokens of a seed are the same under all masks."""
    seeds = tuple(range(size["seeds"])) * len(masks)
    start = random_tokens(seeds, size["tokens"], size["width"])
    return run_layers(
        rule.norm(start) if rule.placement == "post" else start,
        DrawnWeights(WeightRecipe(size["width"], per_layer=True), seeds),
        [parse_schedule(name) for name in masks for _ in range(size["seeds"])],
        size["layers"],
        rule,
        measures=("effective_rank",),
        thin=max(1, size["layers"] // 50),
        ordinary=False,
    )


def _rate(trajectory: Trajectory, samples: range) -> float | None:
    fits = [measured_rate(trajectory.layers, trajectory.log_mu[:, sample].tolist()) for sample in samples]
    rates = [one.rate for one in fits if one is not None]
    return statistics.median(rates) if rates else None


def _scales(norm: Norm, width: int) -> bool:
    return norm.identity or norm.length(width) is not None


def _claims(rows: list[dict[str, Any]], masks: tuple[str, ...]) -> list[Claim]:
    _, causal, window = masks
    low, high = math.log10(COLLAPSED), math.log10(KEPT)
    alone = [row for row in rows if row["block"] == "no residual" and row["mask"] != window]
    post = [row for row in rows if row["block"] == "post" and row["mask"] != window and row["norm"] != "none"]
    kept = [row for row in rows if row["block"] in ("pre", "peri")]
    halves = [row for row in alone if row["mask"] == causal and row["scales"]]
    off = max(abs(row["rate"] - 0.5) for row in halves)
    local = {
        row["norm"]: row["log10_relative_mu"]
        for row in rows
        if row["block"] == "no residual" and row["mask"] == window
    }
    steep = local.pop("dyt:2.0")
    return [
        _all(
            "without a residual connection tokens collapse under every norm, if the mask is not local",
            alone,
            most=low,
        ),
        Claim("there causal masks halve differences under every norm that scales", off < 0.02, f"off by {off:.2g}"),
        Claim(
            "there only a steep tanh keeps tokens apart under a window",
            steep > high and steep > max(local.values()) + math.log10(APART),
            f"relative mu 10^{steep:.2f}; the most of all others 10^{max(local.values()):.2f}",
        ),
        _all("after the sum, with a residual connection, they still collapse", post, most=low),
        _all("before the branch or on both sides no norm lets them collapse", kept, least=high - 1),
        *(_depth_scaled(kept, block, mask) for block in ("pre", "peri") for mask in masks[:2]),
    ]


def _all(statement: str, rows: list[dict[str, Any]], *, least: float = -math.inf, most: float = math.inf) -> Claim:
    values = [row["log10_relative_mu"] for row in rows]
    return Claim(
        statement,
        all(least <= value <= most for value in values),
        f"relative mu of {len(rows)} runs from 10^{max(min(values), -999.0):.1f} to 10^{max(values):.1f}",
    )


def _depth_scaled(rows: list[dict[str, Any]], block: str, mask: str) -> Claim:
    ranks = {row["norm"]: row["effective_rank"] for row in rows if row["block"] == block and row["mask"] == mask}
    own, plain = ranks.pop("layer-scaled"), ranks["layer"]
    best = max(ranks, key=lambda name: ranks[name])
    return Claim(
        f"{block}, {mask}: LayerNorm keeps more when it is scaled by depth",
        own > plain,
        f"effective rank {own:.2f} against {plain:.2f}; of all others {best} keeps most, {ranks[best]:.2f}",
    )


def _draw(curves: Sequence[Curve]) -> Figure:
    """A panel for each place of the norm, under the causal mask; the table has the others."""
    names = list(dict.fromkeys(curve[1] for curve in curves))
    places = [block for block, _, _ in BLOCKS]
    figure, axes = canvas(2, 2, size=(4.8, 3.2))
    panels = dict(zip(places, axes.flat, strict=True))
    for block, norm, mask, layers, values in curves:
        if mask == "causal":
            panels[block].plot(layers, values, color=COLOURS[names.index(norm) % len(COLOURS)], label=norm)
    for block, panel in panels.items():
        panel.set_title(block)
        panel.set(xlabel="layer", ylabel="log10 of relative mu")
        panel.legend(fontsize=7)
    return figure


REPRODUCTION = Reproduction(
    "rankfall/norms",
    "Does each norm keep rank? Norms and where they stand, under three masks",
    (),
    run,
    columns={
        "block": "where the norm stands: after the layer without a residual connection, or with one after the sum"
        " (post), before the branch (pre), on both sides of it (peri)",
        "norm": "the norm as an argument",
        "rate": "factor per layer by which mu falls at the end, median over seeds",
        "scales": "whether the norm leaves tokens as they are or scales each to one length",
    },
)
