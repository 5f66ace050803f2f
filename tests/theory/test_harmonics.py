"""Dimensions, polynomials and spectra against exact integers and 40-digit arithmetic."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.errors import RequestError
from rankfall.theory.harmonics import (
    HIGHEST_DEGREE,
    dimension,
    gegenbauer,
    gegenbauer_at,
    invariant_dimension,
    log_dimension,
    log_invariant_share,
    sign_spectrum,
)
from rankfall.theory.head_bounds import plateau

CLOSE = 1e-11


def exact_coefficient(dim: int, degree: int) -> mpmath.mpf:
    sign = -1 if (degree - 1) // 2 % 2 else 1
    return sign * mpmath.beta(mpmath.mpf(degree) / 2, mpmath.mpf(dim) / 2) / mpmath.pi


@pytest.mark.parametrize("dim", [2, 3, 4, 8, 64, 768, 4096])
def test_spectrum_against_forty_digits(dim: int) -> None:
    spectrum = sign_spectrum(dim, 501)
    with mpmath.workdps(40):
        for index in (0, 1, 2, 10, 50, 125, 250):
            degree = 2 * index + 1
            coefficient = exact_coefficient(dim, degree)
            energy = float(dimension(dim, degree) * coefficient**2)
            assert spectrum.log_coefficients[index] == pytest.approx(float(mpmath.log(abs(coefficient))), rel=CLOSE)
            assert spectrum.signs[index] == mpmath.sign(coefficient)
            assert spectrum.energies[index] == pytest.approx(energy, rel=CLOSE)


@pytest.mark.parametrize("dim", [2, 3, 8, 64, 4096])
def test_log_dimension_is_the_logarithm_of_the_count(dim: int) -> None:
    degrees = np.array([0, 1, 2, 3, 51, 501])
    exact = [math.log(dimension(dim, int(degree))) for degree in degrees]
    np.testing.assert_allclose(log_dimension(dim, degrees), exact, rtol=CLOSE, atol=CLOSE)


@given(dim=st.integers(2, 40), degree=st.integers(0, 30))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_harmonics_and_radial_powers_make_all_polynomials(dim: int, degree: int) -> None:
    # Homogeneous polynomials of degree l are harmonics of degree l, l-2, ... times powers of the squared length.
    assert sum(dimension(dim, part) for part in range(degree, -1, -2)) == math.comb(dim + degree - 1, degree)


@given(dim=st.integers(2, 300), share=st.floats(0, 1))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_share_of_a_head_is_exact_and_never_grows_with_the_degree(dim: int, share: float) -> None:
    rank = 1 + round(share * (dim - 2))
    degrees = np.arange(1, 60, 2)
    logs = log_invariant_share(dim, rank, degrees)
    exact = [math.log(invariant_dimension(rank, int(n))) - math.log(dimension(dim, int(n))) for n in degrees]
    np.testing.assert_allclose(logs, exact, rtol=1e-10, atol=1e-10)
    assert (np.diff(logs) <= 1e-12).all()


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_polynomials_against_forty_digits(dim: int) -> None:
    x = np.array([-0.99, -0.3, 0.0, 0.2, 0.77, 1.0])
    ours = list(gegenbauer(dim, 101, x))
    with mpmath.workdps(40):
        for degree in (1, 2, 7, 50, 101):
            exact = [float(gegenbauer_at(dim, degree, mpmath.mpf(float(value)))) for value in x]
            np.testing.assert_allclose(ours[degree], exact, atol=1e-12)
        if dim > 2:
            order = mpmath.mpf(dim - 2) / 2
            known = mpmath.gegenbauer(9, order, mpmath.mpf("0.3")) / mpmath.gegenbauer(9, order, 1)
            assert gegenbauer_at(dim, 9, 0.3) == pytest.approx(float(known), rel=1e-12)


def test_polynomials_are_orthogonal_with_norm_one_over_dimension() -> None:
    nodes, weights = np.polynomial.legendre.leggauss(200)
    dim = 7
    density = weights * (1 - nodes**2) ** ((dim - 3) / 2)
    table = np.stack(list(gegenbauer(dim, 12, nodes)))
    gram = (table * density) @ table.T / density.sum()
    np.testing.assert_allclose(gram, np.diag([1 / dimension(dim, n) for n in range(13)]), atol=1e-14)


PLATEAUS = {
    4: (0.139747, 0.082106, 0.058286, 0.045215, 0.036945),
    8: (0.161215, 0.102660, 0.076527, 0.061341, 0.051309),
    64: (0.179194, 0.124979, 0.100293, 0.085450, 0.075262),
    4096: (0.181651, 0.128580, 0.104692, 0.090470, 0.080789),
}


@pytest.mark.parametrize("dim", PLATEAUS)
def test_plateaus(dim: int) -> None:
    assert [plateau(dim, degree) for degree in (1, 3, 5, 7, 9)] == pytest.approx(PLATEAUS[dim], abs=6e-7)


def limiting_plateau(degree: int) -> float:
    """The plateau as d grows without bound: eta_l^2 -> (2/pi) C(l-1, (l-1)/2) / (2^(l-1) l)."""
    energies = (math.comb(l - 1, (l - 1) // 2) / (2 ** (l - 1) * l) for l in range(1, degree + 1, 2))  # noqa: E741
    return 0.5 * (1.0 - 2 / math.pi * math.fsum(energies))


def tail_constant(dim: int) -> float:
    """K_d with 1 - sum_{l<=L} eta_l^2 ~ K_d / L at fixed d:  K_d = (Gamma(d/2) 2^(d/2)/pi)^2 / Gamma(d-1)."""
    root = math.lgamma(dim / 2) + dim / 2 * math.log(2) - math.log(math.pi)
    return math.exp(2 * root - math.lgamma(dim - 1))


def test_plateau_limits() -> None:
    assert limiting_plateau(5) == pytest.approx(plateau(200_000, 5), abs=1 / 200_000)
    for dim in (3, 8, 64):
        assert 2 * plateau(dim, 20_001) * 20_001 == pytest.approx(tail_constant(dim), rel=2e-2)
    assert tail_constant(64) == pytest.approx(4.016, abs=5e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sign_spectrum(1, 5), "the width d to be a whole number of at least 2; got 1"),
        (lambda: sign_spectrum(8, HIGHEST_DEGREE + 2), f"the highest degree to be at most {HIGHEST_DEGREE}"),
        (lambda: sign_spectrum(8, 0), "the highest degree to be a whole number of at least 1; got 0"),
        (lambda: plateau(8, 2), "the degree of a plateau to be odd and positive; got 2"),
    ],
)
def test_wrong_requests(call, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()
