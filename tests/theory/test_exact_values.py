"""Every bound of paper A pinned to exact values: by hand where fractions suffice, else in 30 digits or by counting.

Nothing of the package is used but the function under test. On the sphere of R^3 one coordinate t is uniform on
[-1, 1], harmonics of degree l are 2l + 1 in number, and heads of rank 1 keep one of each degree.
"""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import eval_legendre
from tests.formulas import aligned_limit

from rankfall.theory.biased import biased_floor, biased_heads_needed
from rankfall.theory.hardmax import signed_limit, vote_moments
from rankfall.theory.harmonics import sign_spectrum
from rankfall.theory.head_bounds import HeadClass, floor_value, heads_needed, mse_floor, plateau, prefix_floor
from rankfall.theory.one_head import full_rank_error
from rankfall.theory.votes import majority_error, plurality_error_asymptotic

TIGHT = 1e-13


@functools.cache
def energies_on_the_sphere(top: int) -> dict[int, Fraction]:
    """(2l+1) (int_0^1 P_l)^2 at odd degrees, from the coefficients of the Legendre polynomials."""
    before, now = [Fraction(1)], [Fraction(0), Fraction(1)]
    found = {}
    for l in range(1, top + 1):  # noqa: E741
        if l % 2:
            mean = sum(c / (power + 1) for power, c in enumerate(now))
            found[l] = (2 * l + 1) * mean**2
        longer = [Fraction(0), *(Fraction(2 * l + 1, l + 1) * c for c in now)]
        for power, c in enumerate(before):
            longer[power] -= Fraction(l, l + 1) * c
        before, now = now, longer
    return found


def floor_of(energies: dict[int, Any], missing: dict[int, Any]) -> Any:
    """1/2 sum of the energies that are missing, all higher degrees as the last."""
    tail = 1 - sum(energies.values())
    return (sum(energies[degree] * missing[degree] for degree in energies) + tail * missing[max(energies)]) / 2


def floor_on_the_sphere(heads: int, top: int) -> Fraction:
    """1/2 sum E_l (1 - H/(2l+1))_+."""
    energies = energies_on_the_sphere(top)
    missing = {degree: max(Fraction(0), 1 - Fraction(heads, 2 * degree + 1)) for degree in energies}
    return floor_of(energies, missing)


def test_energies_by_hand() -> None:
    assert energies_on_the_sphere(5) == {1: Fraction(3, 4), 3: Fraction(7, 64), 5: Fraction(11, 256)}
    assert sign_spectrum(3, 5).energies == pytest.approx([3 / 4, 7 / 64, 11 / 256], rel=TIGHT)
    assert plateau(3, 1) == pytest.approx(1 / 8, rel=TIGHT)


def test_low_rank_floor() -> None:
    """A-thm2, d = 3, r = 1, H = 2, degrees to 3: 1/2 (3/4 1/3 + 7/64 5/7 + 9/64 5/7) = 3/14; skip takes degree 1."""
    assert floor_on_the_sphere(2, 3) == Fraction(3, 14)
    assert floor_value(HeadClass(3, 1), 2, top=3) == pytest.approx(3 / 14, rel=TIGHT)
    assert floor_value(HeadClass(3, 1, skip=True), 2, top=3) == pytest.approx(5 / 56, rel=TIGHT)
    assert mse_floor(HeadClass(3, 1), 7, top=21).mse == pytest.approx(float(floor_on_the_sphere(7, 21)), rel=1e-12)


def monomials(variables: int, degree: int) -> int:
    return sum(1 for _ in itertools.combinations_with_replacement(range(variables), degree))


def harmonics(dim: int, degree: int) -> int:
    return monomials(dim, degree) - (monomials(dim, degree - 2) if degree > 1 else 0)


def energy(dim: int, degree: int) -> float:
    """N E[sgn(t) P_l(t)]^2 by 30-digit quadrature of Jacobi polynomials."""
    with mpmath.workdps(30):
        order = mpmath.mpf(dim - 3) / 2
        whole = mpmath.quad(lambda t: (1 - t * t) ** order, [0, 1])
        part = mpmath.quad(lambda t: (1 - t * t) ** order * mpmath.jacobi(degree, order, order, t), [0, 1])
        return float(harmonics(dim, degree) * (part / whole / mpmath.jacobi(degree, order, order, 1)) ** 2)


@pytest.mark.parametrize(("dim", "rank", "heads"), [(5, 3, 4), (7, 5, 2), (8, 6, 2)])
def test_low_rank_floor_by_quadrature_and_counting(dim: int, rank: int, heads: int) -> None:
    """A-thm2 at any width: energies by quadrature, dimensions by counting monomials."""
    degrees = (1, 3, 5, 7)
    energies = {degree: energy(dim, degree) for degree in degrees}
    missing = {l: max(0.0, 1 - heads * monomials(rank, l) / harmonics(dim, l)) for l in degrees}  # noqa: E741
    expected = floor_of(energies, missing)
    assert 0 < expected < 0.5
    assert floor_value(HeadClass(dim, rank), heads, top=7) == pytest.approx(expected, rel=1e-12)


def test_generalised_heads() -> None:
    """d = 3, r = 1, H = 1, degrees to 5. Values shift degrees by two and cover (m(l-2) + m(l) + m(l+2))/N = 2/3, 3/7,
    3/11; the prefix form takes 2, 1 and 1 of 3, 7 and 11 harmonics and gives the larger floor, 83/352. At d = 8 and
    H = 759 the first form is the larger: degrees to 5 are covered, of degree 7 are 3 * 759 harmonics of 2640."""
    energies = energies_on_the_sphere(5)
    missing = {1: Fraction(1, 3), 3: Fraction(4, 7), 5: Fraction(8, 11)}
    assert floor_of(energies, missing) < Fraction(83, 352)
    assert prefix_floor(sign_spectrum(3, 5), 1, 1) == pytest.approx(83 / 352, rel=TIGHT)
    assert floor_value(HeadClass(3, 1, generalised=True), 1, top=5) == pytest.approx(83 / 352, rel=TIGHT)
    left = (1 - sum(energy(8, degree) for degree in (1, 3, 5))) * (1 - 3 * 759 / 2640) / 2
    assert floor_value(HeadClass(8, 1, generalised=True), 759, top=7) == pytest.approx(left, rel=1e-12)
    scalar = HeadClass(3, 1, generalised=True, values="scalar")
    assert floor_value(scalar, 1, top=5) == pytest.approx(float(floor_on_the_sphere(1, 5)), rel=TIGHT)


def test_three_points() -> None:
    """d = N = 3, r = 1, H = 1: M = E max g / E|g| = 3/(4 sqrt2), so E_1 = 27/64, and the floor is
    27/64 2/3 + (1 - 1/3 - 27/64) 4/5 = 229/480; a skip connection leaves 47/240."""
    assert floor_value(HeadClass(3, 1, points=3), 1) == pytest.approx(229 / 480, rel=TIGHT)
    assert floor_value(HeadClass(3, 1, points=3, skip=True), 1) == pytest.approx(47 / 240, rel=TIGHT)


@pytest.mark.parametrize("error", [0.3, 0.15, 0.1, 0.07])
def test_heads_needed(error: float) -> None:
    """The least H whose exact floor is not above the error, found by trying one after the other."""
    heads = next(h for h in itertools.count(1) if floor_on_the_sphere(h, 31) <= Fraction(error))
    assert heads_needed(HeadClass(3, 1), error, top=31) == heads


@functools.cache
def oscillating_energies(top: int) -> np.ndarray:
    """(2l+1) (1/2 int psi P_l)^2 at d = 3, psi alternating at 18 points; int P_l is a difference of neighbours."""
    edges = np.concatenate([[-1.0], -1 + 2 * np.arange(1, 19) / 19, [1.0]])
    signs = (-1.0) ** np.arange(19)
    found = [float(signs @ np.diff(edges) / 2) ** 2]
    for l in range(1, top + 1):  # noqa: E741
        integral = (eval_legendre(l + 1, edges) - eval_legendre(l - 1, edges)) / (2 * l + 1)
        found.append((2 * l + 1) * float(signs @ np.diff(integral) / 2) ** 2)
    return np.array(found)


def oscillating_floor(heads: int, top: int = 1125) -> float:
    energies = oscillating_energies(top)
    missing = np.maximum(0.0, 1 - heads / (2 * np.arange(top + 1) + 1))
    return 0.5 * (math.fsum(energies * missing) + (1 - math.fsum(energies)) * float(missing[-1]))


def test_biased_floor() -> None:
    """A-thm4. In the plane a rank-1 head keeps the constant and one of two harmonics of each degree: the floor is
    (1 - E_0)/4, E_0 from the lengths of arcs. On the sphere every degree is integrated."""
    arcs = np.arccos(np.concatenate([[-1.0], -1 + 2 * np.arange(1, 9) / 9, [1.0]]))
    mean = float((-1.0) ** np.arange(9) @ -np.diff(arcs)) / math.pi
    assert biased_floor(2, 1, 1) == pytest.approx((1 - mean**2) / 4, rel=1e-12)
    for heads in (1, 5, 40):
        assert biased_floor(3, 1, heads) == pytest.approx(oscillating_floor(heads), rel=1e-9)


@pytest.mark.parametrize("error", [0.3, 0.2])
def test_biased_heads_needed(error: float) -> None:
    heads = next(h for h in itertools.count(1) if oscillating_floor(h) <= error)
    assert biased_heads_needed(3, 1, error) == heads


@pytest.mark.parametrize("scale", [0.5, 3.0, 40.0])
def test_full_rank_head(scale: float) -> None:
    """A-fact, d = 3: int 1/(1+e^x)^2 = x - log(1+e^x) + 1/(1+e^x), so that the error is elementary."""
    a = math.sqrt(2) * scale
    expected = 2 / a * (a - math.log1p(math.exp(a)) + 1 / (1 + math.exp(a)) + math.log(2) - 0.5)
    assert full_rank_error(3, scale) == pytest.approx(expected, rel=1e-11)


def test_votes() -> None:
    """A-thm7, d = 3, three heads: int_0^1 q^3 + 3 q^2 p dt in 30 digits. A-conj8: Gamma(3/2) (N-1)/sqrt(N H)."""
    with mpmath.workdps(30):

        def two_wrong(t: mpmath.mpf) -> mpmath.mpf:
            q = mpmath.mpf(1) / 2 - mpmath.asin(t) / mpmath.pi
            return q**3 + 3 * q**2 * (1 - q)

        expected = float(mpmath.quad(two_wrong, [0, 1]))
    assert majority_error(3, 3) == pytest.approx(expected, rel=1e-11)
    assert plurality_error_asymptotic(3, 2, 50) == pytest.approx(math.sqrt(math.pi) / 2 / 10, rel=TIGHT)


def test_limits_of_random_heads() -> None:
    """A-rf, d = 3: B1 = 1 - 2/pi and B2 = 1 - 8/pi^2."""
    first, second = 1 - 2 / math.pi, 1 - 8 / math.pi**2
    assert vote_moments(3) == pytest.approx((first, second), rel=1e-11)
    assert aligned_limit(3) == pytest.approx((2 - (1 + first) ** 2 / (1 + second)) / 2, rel=1e-10)
    assert signed_limit(3) == pytest.approx((1 - first**2 / second) / 2, rel=1e-10)
