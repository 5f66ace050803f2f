"""A-rf: the best combination of H random rank-one heads, exact, predicted and as published."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale, published
from rankfall.progress import Progress, silent
from rankfall.theory.hardmax import signed_limit, target_overlap
from rankfall.theory.head_bounds import HeadClass, mse_floor, plateau
from rankfall.theory.random_features.best_fit import error_curve, fit
from rankfall.theory.random_features.kernel import draw_heads
from rankfall.theory.random_features.learning_curve import predicted_error

if TYPE_CHECKING:
    from matplotlib.figure import Figure


WIDTHS: dict[Scale, tuple[int, ...]] = {"smoke": (8, 64), "quick": (8, 16, 32, 64), "paper": (8, 16, 32, 64)}
LARGEST: dict[Scale, int] = {"smoke": 2**8, "quick": 2**12, "paper": 2**16}
DESIGNS = ("independent", "signed", "tilted")
TOLERANCE = 0.05
CHECKED_HEADS, CHECKED_DRAWS = 128, 24
NOTES = (
    "Published points are compared with the design 'tilted' (<q,k> = 0.6 or -0.6), which is our guess: the published "
    "keys are not unit vectors and their law is not stated. Independent unit keys give .469 at 1024 and .276 at "
    "16384 heads (d=64), keys equal to plus or minus the query .220 and .183; the published curve lies between.",
    "The plateau: with H above d^2 heads the degree-1 part of the target is exhausted; the degree-3 part needs about "
    "N(d,3)^2 heads (2e9 at d=64). So every d=64 curve levels off at the plateau of degree 1, .1792.",
    "One head (H=1): the mean over single heads, for a single draw is .73 or .77 by the sign of <q,k>.",
)


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Every width and design on one draw of heads, nested: smoke to 2^8 heads, quick 2^12, paper 2^16."""
    cells = [(design, dim) for design in DESIGNS for dim in WIDTHS[scale]]
    rows: list[dict[str, Any]] = []
    for done, (design, dim) in enumerate(cells):
        share = done / len(cells)
        rows += measured_curve(
            design,
            dim,
            LARGEST[scale],
            lambda what, _, d=design, w=dim, s=share: progress(f"{d} d={w} {what}", s),
        )
    return FigureOutcome(
        points=_points(rows),
        claims=_claims(rows),
        tables={"curves": rows},
        draw=lambda: draw_random_features(rows),
        notes=NOTES,
    )


def measured_curve(design: str, dim: int, largest: int, progress: Progress = silent) -> list[dict[str, Any]]:
    """Records of the exact error at 1, 2, 4, ..., `largest` heads of one draw, with prediction, bound and
    conditioning.
    """
    counts = [2**power for power in range(largest.bit_length())]
    queries, keys = draw_heads(design, dim, largest)
    rows = []
    for one in error_curve(queries, keys, counts, progress=progress):
        rows.append(
            {
                "design": design,
                "dim": dim,
                "heads": one.heads,
                "mse": one.error,
                "predicted": None if design == "tilted" else predicted_error(design, dim, one.heads),
                "lower_bound": mse_floor(HeadClass(dim, 1), one.heads).mse,
                "excess_at_most": one.excess,
                "residual": one.residual,
                "condition": one.condition,
                "iterations": one.iterations,
            }
        )
    return rows


def _points(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    points = []
    for row in published("amsel_random_features.csv"):
        dim, heads, theirs = int(row["dim"]), int(row["heads"]), float(row["mse"])
        ours = {
            one["design"]: one["mse"] if heads > 1 else _one_head(one["design"], dim)
            for one in rows
            if (one["dim"], one["heads"]) == (dim, heads)
        }
        if ours:
            near = abs(ours["tilted"] / theirs - 1) <= TOLERANCE
            points.append(
                {
                    "dim": dim,
                    "heads": heads,
                    "published": theirs,
                    "ours": ours["tilted"],
                    # The tilt was fitted to these very points, so meeting them decides nothing.
                    "agrees": None,
                    "within_tolerance": near,
                    "independent": ours["independent"],
                    "signed": ours["signed"],
                }
            )
    return points


def _one_head(design: str, dim: int) -> float:
    """1 - b^2 averaged over many single heads."""
    queries, keys = draw_heads(design, dim, 256, seed=1)
    right = target_overlap((queries * keys).sum(-1), dim)
    return float(torch.mean(1 - right**2))


def _claims(rows: list[dict[str, Any]]) -> list[Claim]:
    above = min(row["mse"] - row["lower_bound"] for row in rows)
    loosest = max(rows, key=lambda row: row["excess_at_most"])
    widest = max((row for row in rows if row["design"] == "signed"), key=lambda row: (row["dim"], row["heads"]))
    limit = signed_limit(widest["dim"])
    return [
        Claim("no error lies below the lower bound for rank-1 heads", above >= 0, f"least margin {above:.2e}"),
        _prediction_claim(sorted({row["dim"] for row in rows})),
        Claim(
            "every system is solved: the error exceeds the best by less than 1e-8",
            loosest["excess_at_most"] < 1e-8,
            f"at most {loosest['excess_at_most']:.1e}, condition {loosest['condition']:.0f}",
        ),
        Claim(
            "keys equal to plus or minus the query stay above their limit, a little above the degree-1 plateau",
            widest["mse"] >= limit - 1e-9 and limit > plateau(widest["dim"], 1),
            f"d={widest['dim']}, H={widest['heads']}: {widest['mse']:.5f}, limit {limit:.5f}, "
            f"plateau {plateau(widest['dim'], 1):.5f}",
        ),
    ]


def _prediction_claim(dims: list[int]) -> Claim:
    """The mean over draws against the prediction, in standard errors beyond the 1 % that finite dimensions cost."""
    worst, where = -math.inf, ""
    for design in ("independent", "signed"):
        for dim in dims:
            draws = [fit(*draw_heads(design, dim, CHECKED_HEADS, seed)).error for seed in range(CHECKED_DRAWS)]
            mean, spread = statistics.fmean(draws), statistics.stdev(draws) / math.sqrt(CHECKED_DRAWS)
            expected = predicted_error(design, dim, CHECKED_HEADS)
            beyond = max(0.0, abs(mean - expected) - 0.01 * expected) / spread
            if beyond > worst:
                worst, where = beyond, f"{design}, d={dim}: {mean:.5f} +- {spread:.5f}, predicted {expected:.5f}"
    return Claim(
        f"theory predicts the mean error of {CHECKED_HEADS} heads to 1 %, without a fitted number",
        worst <= 3,
        f"worst over designs and widths, {CHECKED_DRAWS} draws: {where}",
    )


def draw_random_features(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Three panels: independent heads by width, signed heads by width, and d=64 by design beside published values."""
    figure, axes = canvas(1, 3, size=(4.6, 3.8), sharey=True)
    dims = sorted({row["dim"] for row in rows})
    for axis, design in zip(axes[0], ("independent", "signed"), strict=False):
        for place, dim in enumerate(dims):
            chosen = [row for row in rows if (row["design"], row["dim"]) == (design, dim)]
            heads = [row["heads"] for row in chosen]
            axis.plot(heads, [row["mse"] for row in chosen], MARKERS[place], color=COLOURS[place], label=f"d={dim}")
            series = {"gid": f"d={dim}", "label": "_predicted"}
            axis.plot(heads, [row["predicted"] for row in chosen], color=COLOURS[place], linewidth=1, **series)
            axis.axhline(plateau(dim, 1), color=COLOURS[place], linestyle=":", linewidth=0.8)
        title = "k independent of q" if design == "independent" else "k = q or -q"
        axis.set_title(f"{title} (lines: predicted)")
        axis.legend(fontsize=8)
    last = axes[0, 2]
    for place, design in enumerate(("independent", "signed", "tilted")):
        chosen = [row for row in rows if (row["design"], row["dim"]) == (design, dims[-1])]
        label = {"tilted": "<q,k> = ±0.6", "signed": "k = ±q"}.get(design, design)
        last.plot([r["heads"] for r in chosen], [r["mse"] for r in chosen], marker=MARKERS[place], label=label)
    bound = [row for row in rows if (row["design"], row["dim"]) == ("signed", dims[-1])]
    last.plot([r["heads"] for r in bound], [r["lower_bound"] for r in bound], color="grey", label="lower bound")
    theirs = [row for row in published("amsel_random_features.csv") if int(row["dim"]) == dims[-1]]
    last.plot(
        [int(row["heads"]) for row in theirs],
        [float(row["mse"]) for row in theirs],
        "kx",
        markersize=10,
        markeredgewidth=2,
        label="published",
        zorder=5,
    )
    last.set_title(f"d = {dims[-1]}, by design")
    last.legend(fontsize=8)
    for axis in axes[0]:
        axis.set_xscale("log", base=2)
        axis.set_xlabel("heads H (dotted: degree-1 plateau)" if axis is not last else "heads H")
    axes[0, 0].set_ylabel("mean squared error")
    return figure


REPRODUCTION = Reproduction(
    "amsel/random-features",
    "best combination of H random rank-1 heads",
    ("A-rf", "A-thm2"),
    run,
    columns={
        "lower_bound": "error that no rank-one heads of this number go below",
        "excess_at_most": "by how much the error can exceed the least one, since the solution is approximate",
        "condition": "condition number of the system solved",
        "iterations": "steps of conjugate gradients",
        "within_tolerance": "whether ours is near the published point; keys were fitted to it, so it decides nothing",
        "independent": "error with keys independent of queries",
        "signed": "error with keys equal or opposite to queries",
    },
)
