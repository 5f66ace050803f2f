"""A-fig5: the weight function that writes the target as an integral over rank-1 heads."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.drawing.canvas import canvas
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale, published
from rankfall.progress import Progress, silent
from rankfall.theory.harmonics import Floats
from rankfall.theory.representing import WeightFunction, cut_sign, represented_sign, weight_function

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DEGREE = 50
BEYOND = (4, 6, 8, 16, 32, 64, 256)
TOLERANCE = 0.02
NOTE = (
    "The coefficients that represent the target are N(d,l)/lambda_l (checked here by quadrature). The published "
    "peaks are those of N(d,l)^(3/2)/lambda_l, one factor sqrt(N(d,l)) more, to their two or three digits at all "
    "three widths: the polynomials appear to be scaled to unit norm where the coefficients assume value one at one. "
    "Peaks that represent the target are smaller by a factor of 50 to 8000, and still explode, as the paper says."
)


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    """Closed form: the same at every scale, but for the number of angles drawn."""
    import pandas as pd

    angles = np.linspace(-math.pi, math.pi, {"smoke": 401, "quick": 2001, "paper": 8001}[scale])
    rows = published("amsel_fig5.csv")
    points = [_point(int(row["dim"]), float(row["peak"])) for row in rows]
    curves = {int(row["dim"]): weight_function(int(row["dim"]), angles, DEGREE) for row in rows}
    peaks = [_peaks(dim) for dim in BEYOND]
    table = pd.DataFrame({"angle": angles, **{f"u_d{dim}": curve.numbers for dim, curve in curves.items()}})
    return FigureOutcome(
        points=points,
        claims=[_represents(dim) for dim in curves],
        tables={"weight_function": table, "peaks": peaks},
        draw=lambda: _draw(curves, peaks),
        notes=[NOTE],
    )


def _point(dim: int, theirs: float) -> dict[str, Any]:
    at_zero = np.zeros(1)
    ours = float(weight_function(dim, at_zero, DEGREE, "published").numbers[0])
    return {
        "dim": dim,
        "degree": DEGREE,
        "published": theirs,
        "ours": ours,
        "agrees": abs(ours / theirs - 1) <= TOLERANCE,
        "representing": float(weight_function(dim, at_zero, DEGREE).numbers[0]),
    }


def _peaks(dim: int) -> dict[str, Any]:
    ours = weight_function(dim, np.zeros(1), DEGREE)
    scaled = weight_function(dim, np.zeros(1), DEGREE, "published")
    return {"dim": dim, "log10_representing": ours.log10_peak, "log10_published_scaling": scaled.log10_peak}


def _represents(dim: int) -> Claim:
    overlap: Floats = np.linspace(-0.95, 0.95, 39)
    worst = float(np.abs(represented_sign(dim, overlap, DEGREE) - cut_sign(dim, overlap, DEGREE)).max())
    return Claim(
        f"d={dim}: heads weighted by u add up to the degree-{DEGREE} part of the target",
        worst < 1e-9,
        f"largest difference {worst:.1e} over 39 overlaps, by quadrature",
    )


def _draw(curves: dict[int, WeightFunction], peaks: list[dict[str, Any]]) -> Figure:
    figure, axes = canvas(1, len(curves) + 1, size=(4.0, 3.4))
    for axis, (dim, curve) in zip(axes[0], curves.items(), strict=False):
        axis.plot(curve.angles, curve.numbers, linewidth=0.8)
        axis.set_yscale("symlog", linthresh=10 ** (curve.log10_peak - 4))
        axis.set_title(f"d = {dim}")
        axis.set_xlabel("angle between q and k")
        axis.set_xticks([-math.pi, 0, math.pi], ["-π", "0", "π"])
    axes[0, 0].set_ylabel("u (symmetric logarithm)")
    last = axes[0, -1]
    dims = [row["dim"] for row in peaks]
    last.plot(dims, [row["log10_representing"] for row in peaks], marker="o", label="represents the target")
    last.plot(dims, [row["log10_published_scaling"] for row in peaks], marker="s", label="published scaling")
    rows = published("amsel_fig5.csv")
    last.plot(
        [int(row["dim"]) for row in rows],
        [math.log10(float(row["peak"])) for row in rows],
        "kx",
        markersize=9,
        label="published",
    )
    last.set_xscale("log", base=2)
    last.set_xlabel("width d")
    last.set_ylabel("log10 of the peak of u")
    last.set_title("peak, degree 50")
    last.legend(fontsize=8)
    return figure


REPRODUCTION = Reproduction(
    "amsel/fig5",
    "weight function u over the angle between query and key",
    ("A-fig5",),
    run,
    columns={
        "degree": "degree of the harmonic polynomial",
        "representing": "largest weight of the function that represents the target",
        "log10_representing": "decimal logarithm of the largest weight of the function that represents the target",
        "log10_published_scaling": "the same, scaled so that the published peaks are met",
        **{f"u_d{d}": f"weight function at that angle, d = {d}" for d in (4, 6, 8, 16, 32, 64)},
    },
)
