"""A-fact: one full-rank head with score c <x_i, y> against the nearest-neighbour target, as its scale c grows."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import expit

from rankfall.errors import require, require_count
from rankfall.theory.harmonics import average, cumulative, density_at_zero, expected_maximum, panels, require_dim

M0 = math.log(2) - 0.5
"""The integral of sigma(-x)^2 over x > 0."""


def _require_scale(scale: float) -> None:
    require(
        scale > 0 and math.isfinite(scale),
        required="the scale c of the scores to be positive and finite",
        got=scale,
        remedy="a larger c is a harder choice",
    )


def full_rank_error(dim: int, scale: float) -> float:
    """Exact E||head - f||^2 for N=2 orthonormal points and any c > 0:  2 E sigma(-sqrt2 c |t|)^2.

    t is one coordinate of a uniform point of S^(d-1), sigma the logistic function.
    """
    require_dim(dim)
    _require_scale(scale)
    return 2 * average(lambda t: expit(-math.sqrt(2) * scale * t) ** 2, dim, width=1 / scale)


def many_points_asymptotic(dim: int, scale: float, points: int, *, independent: bool = False) -> float:
    """Large-c error for N points, (2 (ln2-1/2)/c) G; needs c well above sqrt(d log N). Three-way ties add O(1/c^2).

    Orthonormal points: G = sqrt2 Gamma(d/2)/Gamma((d-1)/2) m_N. Independent uniform points:
    G = N(N-1) int f_d(s)^2 F_d(s)^(N-2) (1-s^2) ds. G is the density at zero of the gap between the two best scores
    times half the mean squared distance of the two points at a tie.
    """
    _require_scale(scale)
    require_count("the number of points N", points, least=2)
    peak = density_at_zero(dim)
    if not independent:
        remedy = "lower N, or take independent points"
        require_count("the number of orthonormal points N", points, least=2, most=dim, remedy=remedy)
        tie = math.sqrt(2 * math.pi) * peak * expected_maximum(points)
    else:
        angle, weight = panels(np.linspace(-math.pi / 2, math.pi / 2, 65))
        mass = np.cos(angle) ** (2 * dim - 3) * cumulative(dim, np.sin(angle)) ** (points - 2)
        tie = points * (points - 1) * peak**2 * float(np.sum(weight * mass))
    return 2 * M0 / scale * tie
