"""Zeros in a disc by the test of Schur and Cohn, and compressions by Faddeev and LeVerrier, against NumPy."""

from __future__ import annotations

from decimal import Decimal, localcontext

import numpy as np
import pytest

from rankfall.linalg.disc import compression_polynomials, largest_zero, zeros_inside


def decimals(values: np.ndarray) -> list[Decimal]:
    return [Decimal(float(value)) for value in values]


@pytest.mark.parametrize("seed", range(6))
def test_largest_zero_matches_the_roots(seed: int) -> None:
    generator = np.random.default_rng(seed)
    coefficients = generator.standard_normal(6)
    expected = np.abs(np.roots(coefficients[::-1])).max()
    with localcontext(prec=60):
        assert float(largest_zero(decimals(coefficients))) == pytest.approx(expected, rel=1e-10)
        assert zeros_inside(decimals(coefficients), Decimal(expected * 1.001))
        assert not zeros_inside(decimals(coefficients), Decimal(expected * 0.999))


def test_a_tenfold_zero_is_found_exactly_where_float64_loses_it() -> None:
    with localcontext(prec=200):
        coefficients = [Decimal(1)]
        for _ in range(10):
            shifted = [Decimal(0), *coefficients]
            scaled = [Decimal("0.9") * c for c in coefficients] + [Decimal(0)]
            coefficients = [a - b for a, b in zip(shifted, scaled, strict=True)]
        assert float(largest_zero(coefficients)) == pytest.approx(0.9, abs=1e-14)
    lost = np.abs(np.roots([float(c) for c in reversed(coefficients)])).max()
    assert abs(lost - 0.9) > 1e-3


def test_constants_have_no_zero() -> None:
    assert largest_zero([Decimal(3)]) == 0


@pytest.mark.parametrize("seed", range(4))
def test_compression_has_the_characteristic_polynomial_of_the_compressed_matrix(seed: int) -> None:
    generator = np.random.default_rng(seed)
    matrix = generator.standard_normal((5, 5))
    token = generator.standard_normal(5)
    token /= np.linalg.norm(token)
    basis = np.linalg.svd(token[None])[2][1:]
    expected = np.poly(basis @ matrix @ basis.T)[::-1]
    with localcontext(prec=60):
        (found,) = compression_polynomials([decimals(row) for row in matrix], [decimals(token)])
    assert [float(c) for c in found] == pytest.approx(expected, abs=1e-10)
