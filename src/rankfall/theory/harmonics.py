"""Harmonic analysis on S^(d-1): the law of one coordinate, dimensions, Gegenbauer polynomials, spectrum of a sign.

Everything in float64 and in log space where numbers overflow.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaln, gammaln, log_ndtr

from rankfall.errors import require_count

Floats = NDArray[np.float64]

HIGHEST_DEGREE = 1_000_001
"""Beyond this the spectra below would need more than a few hundred megabytes; no number that we print needs it."""

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


def require_dim(dim: int) -> int:
    """A width d that has a sphere with more than two points."""
    return require_count("the width d", dim, least=2)


def require_degree(top: int) -> int:
    """A degree that the recurrences reach in bounded memory."""
    remedy = "lower the degree, or allow a larger error"
    return require_count("the highest degree", top, most=HIGHEST_DEGREE, remedy=remedy)


def dimension(dim: int, degree: int) -> int:
    """N(d,l): the number of linearly independent harmonics of degree l on S^(d-1), exactly."""
    if degree < 0:
        return 0
    smaller = math.comb(dim + degree - 3, degree - 2) if degree >= 2 else 0
    return math.comb(dim + degree - 1, degree) - smaller


def invariant_dimension(rank: int, degree: int) -> int:
    """m(r,l) = C(r+l-1, l): harmonics of degree l that depend on r fixed directions only (r < d), exactly."""
    return math.comb(rank + degree - 1, degree) if degree >= 0 else 0


def log_dimension(dim: int, degrees: NDArray[np.int64]) -> Floats:
    """log N(d,l) = log(2l+d-2) + logGamma(l+d-2) - logGamma(l+1) - logGamma(d-1), where N itself would overflow."""
    degree = np.asarray(degrees, dtype=np.float64)
    at_least_one = np.maximum(degree, 1.0)
    value = np.log(2 * at_least_one + dim - 2) + gammaln(at_least_one + dim - 2)
    value -= gammaln(at_least_one + 1) + gammaln(dim - 1)
    return np.where(degree == 0, 0.0, value)


def log_invariant_share(dim: int, rank: int, degrees: NDArray[np.int64]) -> Floats:
    """log( m(r,l) / N(d,l) ) for consecutive odd degrees 1, 3, 5, ... by the ratio of neighbours (no cancellation).

    m/N at l+2 over m/N at l is (r+l)(r+l+1)(2l+d-2) / ((2l+d+2)(l+d-1)(l+d-2)), and r/d at l = 1. It decreases in l
    for every r <= d-1, which is what makes cutting the lower bounds at a finite degree valid.
    """
    l = degrees[:-1].astype(np.float64)  # noqa: E741
    steps = np.log(rank + l) + np.log(rank + l + 1) + np.log(2 * l + dim - 2)
    steps -= np.log(2 * l + dim + 2) + np.log(l + dim - 1) + np.log(l + dim - 2)
    return np.concatenate([[math.log(rank / dim)], math.log(rank / dim) + np.cumsum(steps)])


def gegenbauer(dim: int, top: int, x: Any) -> Iterator[Any]:
    """P_0(x), P_1(x), ..., P_top(x) of dimension d, normalised to P_l(1) = 1, one after the other.

    P_{l+1} = ((2l+d-2) x P_l - l P_{l-1}) / (l+d-2). Within [-1, 1] both solutions of the recurrence oscillate with
    the same amplitude, so going upwards loses no more than about l rounding errors of the local amplitude; expanding
    in powers of x instead loses all digits by degree 50. `x` is a number, a NumPy array or a tensor.
    """
    before, now = x * 0 + 1.0, x * 1.0
    yield before
    for l in range(1, top + 1):  # noqa: E741
        yield now
        before, now = now, ((2 * l + dim - 2) * x * now - l * before) / (l + dim - 2)


def gegenbauer_at(dim: int, degree: int, x: Any) -> Any:
    """P_l(x) alone."""
    return next(itertools.islice(gegenbauer(dim, degree, x), degree, None))


@dataclass(frozen=True)
class SignSpectrum:
    """The expansion of sgn<w, y> on S^(d-1) at the odd degrees 1, 3, ..., top.

    |lambda_l| = B(l/2, d/2)/pi with sign (-1)^((l-1)/2);  eta_l^2 = N(d,l) lambda_l^2 sums to one.
    `log_coefficients` is log|lambda_l|: the coefficients themselves underflow at large d.
    """

    dim: int
    degrees: NDArray[np.int64]
    log_coefficients: Floats
    energies: Floats

    @property
    def top(self) -> int:
        return int(self.degrees[-1])

    @property
    def signs(self) -> Floats:
        return np.where((self.degrees - 1) // 2 % 2 == 0, 1.0, -1.0)

    @property
    def coefficients(self) -> Floats:
        """lambda_l, signed."""
        return np.asarray(self.signs * np.exp(self.log_coefficients))

    @property
    def tail(self) -> float:
        """1 - sum of eta_l^2 up to `top`: the energy of all higher degrees."""
        return max(0.0, 1.0 - math.fsum(self.energies))


@functools.lru_cache(maxsize=64)
def sign_spectrum(dim: int, top: int = 501) -> SignSpectrum:
    """The spectrum of the nearest-neighbour target up to degree `top` (A-thm2's harmonic analysis), in log space.

    lambda_{l+2} = -lambda_l l/(l+d) and eta_{l+2}^2/eta_l^2 = (l/(l+d))^2 (2l+d+2)(l+d-1)(l+d-2)/((2l+d-2)(l+1)(l+2))
    from lambda_1 = B(1/2, d/2)/pi and eta_1^2 = d lambda_1^2. Every step multiplies positive numbers: no
    cancellation.
    """
    require_dim(dim)
    require_degree(top)
    degrees = np.arange(1, top + 1, 2, dtype=np.int64)
    l = degrees[:-1].astype(np.float64)  # noqa: E741
    shrink = np.log(l) - np.log(l + dim)
    grow = np.log(2 * l + dim + 2) + np.log(l + dim - 1) + np.log(l + dim - 2)
    grow -= np.log(2 * l + dim - 2) + np.log(l + 1) + np.log(l + 2)
    first = float(betaln(0.5, dim / 2)) - math.log(math.pi)
    log_coefficients = first + np.concatenate([[0.0], np.cumsum(shrink)])
    log_energies = math.log(dim) + 2 * first + np.concatenate([[0.0], np.cumsum(2 * shrink + grow)])
    return SignSpectrum(dim, degrees, log_coefficients, np.exp(log_energies))
