"""Beyond paper B: the measured rate of collapse against the mask's radius, over hundreds of masks, bound drawn in."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.stats import spearmanr

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.dynamics.rate import measured_rate
from rankfall.dynamics.step import random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.masks import Mask, parse_mask
from rankfall.progress import Progress, part, silent
from rankfall.theory.collapse import collapse_theorem
from rankfall.theory.uniform_attention import tail_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SIZES: dict[Scale, dict[str, int]] = {
    "smoke": {"tokens": 12, "dim": 4, "layers": 400, "random": 2},
    "quick": {"tokens": 32, "dim": 8, "layers": 1500, "random": 20},
    "paper": {"tokens": 64, "dim": 16, "layers": 4000, "random": 24},
}
PROBABILITIES = (0.05, 0.07, 0.09, 0.12, 0.16, 0.2, 0.3, 0.5)
# Measured and predicted exponents that differ by less than this share agree.
AGREEMENT = 0.05


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Every mask with a root runs through the same layers; its tail is set against radius, bound and eigenvalue."""
    size = SIZES[scale]
    n, d, layers = size["tokens"], size["dim"], size["layers"]
    names = _masks(n, size["random"])
    masks = [parse_mask(name) for name in names]
    start = random_tokens([0], n, d)
    weights = DrawnWeights(WeightRecipe(d), [0])
    rows = _rows(names, masks, weights, start[0], n)
    names = [row["mask"] for row in rows]
    progress(f"{len(names)} masks", 0.1)
    done = run_layers(
        start.repeat(len(names), 1, 1),
        DrawnWeights(WeightRecipe(d), [0] * len(names)),
        [parse_mask(name) for name in names],
        layers,
        measures=(),
        ordinary=False,
        progress=part(progress, 0.1, 1.0, f"{len(names)} masks"),
    )
    log_mu = done.log_mu
    for place, row in enumerate(rows):
        fit = measured_rate(done.layers, log_mu[:, place].tolist())
        assert fit is not None
        row |= {"law": fit.law, "measured": fit.rate, "r_squared": fit.r_squared}
    return FigureOutcome(
        points=[],
        claims=_claims(rows),
        tables={"masks": rows},
        draw=lambda: _draw(rows),
        notes=(
            f"{len(rows)} masks with a root on {n} tokens of dimension {d}, orthogonal values, {layers} layers.",
            "The radius alone does not fix the tail: one-way masks of any radius end at 1/2, after a transient "
            "whose length grows with the radius; two-sided masks slow down like the square of the radius.",
        ),
    )


def _masks(n: int, random: int) -> list[str]:
    widths = range(1, n - 1)
    named = ["causal", "star", "out-star"]
    named += [f"window:{w}" for w in widths] + [f"causal-window:{w}" for w in widths]
    named += [f"ring:{w}" for w in range(1, (n - 1) // 2)]
    named += [f"dilated:{w}:{s}" for s in (2, 3) for w in range(2, n // s)]
    named += [f"global-window:{h}:{w}" for h in (1, 2, 4) for w in (1, 2, 4)] + [
        f"prefix:{p}" for p in (2, 4, n // 2)
    ]
    named += [f"random:{p}:{seed}" for p in PROBABILITIES for seed in range(random)]
    return named


def _rows(names: list[str], masks: list[Mask], weights: DrawnWeights, start: Any, n: int) -> list[dict[str, Any]]:
    """Theory of every mask that has a root and is not complete."""
    rows = []
    for name, mask in zip(names, masks, strict=True):
        theorem = collapse_theorem([weights.at(0)], mask, start)
        if theorem.bound is None or bool(mask.dense(n).all()):
            continue
        rows.append(
            {
                "mask": name,
                "family": name.partition(":")[0],
                "radius": theorem.facts.radius,
                "strongly_connected": theorem.facts.strongly_connected,
                "tail_rate": tail_rate(mask, n),
                "bound": theorem.bound.rate,
                "bound_speed": -theorem.bound.log_rate,
            }
        )
    return rows


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    speed = np.array([-math.log(row["measured"]) for row in rows])
    bound = np.array([row["bound_speed"] for row in rows])
    tail = np.array([-math.log(row["tail_rate"]) for row in rows])
    two_way = np.array([row["strongly_connected"] for row in rows])
    radius = np.array([row["radius"] for row in rows])
    agree = np.abs(speed - tail) <= AGREEMENT * tail
    radii = np.unique(radius[two_way])
    medians = [float(np.median(speed[two_way & (radius == one)])) for one in radii]
    rank = float(spearmanr(radii, medians).statistic)
    one_way = np.array([row["family"] == "causal-window" for row in rows])
    halves = np.abs(tail[one_way] - math.log(2)) < 1e-9
    return [
        Claim("the theorem's bound is never beaten", bool((speed >= bound).all()), f"{len(rows)} masks"),
        Claim(
            f"measured exponents are the second eigenvalue's within {AGREEMENT:.0%} for nine masks in ten",
            float(agree.mean()) >= 0.9,
            f"{agree.mean():.1%} of masks",
        ),
        Claim(
            "among strongly connected masks a larger radius collapses more slowly (medians per radius)",
            rank < -0.9,
            f"Spearman correlation of radius and median exponent {rank:.2f} over {int(two_way.sum())} masks",
        ),
        Claim(
            "one-directional windows end at 1/2 whatever their radius: the radius does not set their tail",
            bool(halves.all()),
            f"radius {radius[one_way].min()} to {radius[one_way].max()}",
        ),
    ]


def _draw(rows: list[dict[str, Any]]) -> Figure:
    figure, axes = canvas(1, 2, size=(6.0, 4.4))
    by_radius, by_eigenvalue = axes[0]
    families = list(dict.fromkeys(row["family"] for row in rows))
    for place, family in enumerate(families):
        chosen = [row for row in rows if row["family"] == family]
        style = {
            "marker": MARKERS[place % len(MARKERS)],
            "color": COLOURS[place % len(COLOURS)],
            "s": 22,
            "alpha": 0.75,
        }
        speed = [-math.log(row["measured"]) for row in chosen]
        by_radius.scatter([row["radius"] for row in chosen], speed, label=family, **style)
        by_eigenvalue.scatter([-math.log(row["tail_rate"]) for row in chosen], speed, **style)
    by_radius.scatter(
        [row["radius"] for row in rows], [row["bound_speed"] for row in rows], marker="_", color="0.5", label="bound"
    )
    ends = [min(-math.log(row["tail_rate"]) for row in rows), max(-math.log(row["tail_rate"]) for row in rows)]
    by_eigenvalue.plot(ends, ends, color="0.3", linewidth=1, label="equal")
    by_radius.set_xlabel("radius of the mask")
    by_eigenvalue.set_xlabel("-log of the second eigenvalue of uniform attention")
    by_radius.set_ylabel("collapse per layer, -log of the factor")
    for axis in (by_radius, by_eigenvalue):
        axis.set_xscale("log")
        axis.set_yscale("log")
    by_radius.set_ylim(bottom=1e-16)
    by_radius.legend(fontsize=7, ncols=2)
    by_eigenvalue.legend(fontsize=8)
    return figure


REPRODUCTION = Reproduction(
    "rankfall/rate-vs-radius",
    "measured rate of collapse against radius, over many masks",
    ("B-thm1",),
    run,
    columns={
        "strongly_connected": "whether every token reaches every token",
        "tail_rate": "second eigenvalue of uniform attention: the factor per layer in the end",
        "bound": "factor per layer that B-thm1 proves",
        "bound_speed": "minus the logarithm of that factor",
        "r_squared": "share of the variance of log mu that a straight line explains",
    },
)
