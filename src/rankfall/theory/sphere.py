"""One coordinate of a uniform point on S^(d-1), and the largest of N standard normals: the two laws behind every
average.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import numpy as np
from scipy.special import betainc, gammaln, log_ndtr

from rankfall.errors import require_count
from rankfall.theory.harmonics import Floats, require_dim

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)


def density_at_zero(dim: int) -> float:
    """f_d(0) = Gamma(d/2) / (sqrt(pi) Gamma((d-1)/2)) ~ sqrt(d/(2 pi)); f_d(t) = f_d(0) (1-t^2)^((d-3)/2)."""
    require_dim(dim)
    return math.exp(gammaln(dim / 2) - gammaln((dim - 1) / 2)) / math.sqrt(math.pi)


def cumulative(dim: int, t: Floats) -> Floats:
    """F_d(t): the probability that one coordinate is at most t."""
    return np.asarray(betainc((dim - 1) / 2, (dim - 1) / 2, (1 + np.asarray(t)) / 2))


def panels(edges: Floats) -> tuple[Floats, Floats]:
    """Nodes and weights of a 48-point Gauss-Legendre rule on every interval between consecutive edges."""
    half = np.diff(edges)[:, None] / 2
    middle = (edges[:-1] + edges[1:])[:, None] / 2
    return (middle + half * _NODES).ravel(), (half * _WEIGHTS).ravel()


def average(function: Callable[[Floats], Floats], dim: int, width: float = 1.0) -> float:
    """E g(|t|) for one coordinate t of a uniform point; `width` is the scale on which g changes near zero.

    With t = sin(a):  2 f_d(0) int_0^(pi/2) g(sin a) cos(a)^(d-2) da, on panels that double from the smallest scale.
    """
    start = min(width, 1 / math.sqrt(dim), 0.5) / 2
    edges = [0.0]
    while start < math.pi / 2:
        edges.append(start)
        start *= 2
    angle, weight = panels(np.array([*edges, math.pi / 2]))
    with np.errstate(divide="ignore"):
        mass = np.exp((dim - 2) * np.log(np.cos(angle)))
    return float(2 * density_at_zero(dim) * np.sum(weight * mass * function(np.sin(angle))))


@functools.lru_cache(maxsize=256)
def expected_maximum(points: int) -> float:
    """m_N = E max of N standard normals = N(N-1) int phi^2 Phi^(N-2)."""
    require_count("the number of points N", points, least=2)
    x, weight = panels(np.linspace(-12.0, 12.0, 49))
    log_integrand = -(x**2) - math.log(2 * math.pi) + (points - 2) * log_ndtr(x)
    return float(points * (points - 1) * np.sum(weight * np.exp(log_integrand)))


def expected_largest_coordinate(dim: int, points: int) -> float:
    """M = E max_i y_i over N coordinates of a uniform y on S^(d-1): m_N Gamma(d/2) / (sqrt2 Gamma((d+1)/2))."""
    require_dim(dim)
    ratio = math.exp(gammaln(dim / 2) - gammaln((dim + 1) / 2))
    return expected_maximum(points) * ratio / math.sqrt(2)
