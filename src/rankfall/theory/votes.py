"""A-thm7: majority votes of rank-1 hardmax heads with q = k drawn uniformly, and plurality votes among N points."""

from __future__ import annotations

import math

import numpy as np
from scipy.special import betainc, gammaln

from rankfall.errors import MOST_HEADS, require, require_count
from rankfall.theory.harmonics import Floats, average, require_dim


def head_success(overlap: Floats) -> Floats:
    """P(head right | t) = 1/2 + asin|t|/pi for a head with q = k uniform and t = <w, y>; it does not depend on d."""
    return np.asarray(0.5 + np.arcsin(np.abs(overlap)) / math.pi)


def require_odd(heads: int) -> None:
    """Heads that never tie in a vote between two points."""
    require_count("the number of heads H", heads, most=MOST_HEADS)
    require(
        heads % 2 == 1,
        required="an odd number of heads, so that no vote ties",
        got=heads,
        remedy=f"use {heads + 1}",
    )


def majority_error(dim: int, heads: int) -> float:
    """P_err = int f_d(t) P(Bin(H, p(t)) <= (H-1)/2) dt for odd H; the mean squared error of the vote is 2 P_err."""
    require_dim(dim)
    require_odd(heads)
    half = (heads + 1) / 2
    return average(lambda t: betainc(half, half, 1 - head_success(t)), dim, width=1 / math.sqrt(heads))


def plurality_error_asymptotic(dim: int, points: int, heads: int) -> float:
    """Large H, orthonormal points: P_err ~ [Gamma(d/2)/Gamma((d-1)/2)] (N-1)/sqrt(N H).

    So H ~ d (N-1)^2 / (2 N P_err^2): linear in d and in N. For independent points with N >= 3 the vote is NOT
    consistent (close points split it), and no such formula exists.
    """
    require_dim(dim)
    require_count("the number of heads H", heads, most=MOST_HEADS)
    require_count("the number of points N", points, least=2)
    return math.exp(gammaln(dim / 2) - gammaln((dim - 1) / 2)) * (points - 1) / math.sqrt(points * heads)
