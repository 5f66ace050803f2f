"""What is read off a tridiagonal matrix without its eigenvalues equals what the eigenvalues say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.linalg import entropy as entropy_module
from rankfall.linalg.entropy import entropy, x_log_x
from rankfall.linalg.lapack import tridiagonal_counts, tridiagonal_eigenvalue, tridiagonalise
from rankfall.linalg.tridiagonal import Spectrum

# Each eigenvalue of a trace of one may add this much to the entropy.
TOLERANCE = 1e-12


def tridiagonal(eigenvalues: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """A tridiagonal matrix with these eigenvalues, up to rounding of the largest."""
    size = len(eigenvalues)
    basis = np.linalg.qr(np.random.default_rng(seed).standard_normal((size, size)))[0]
    return tridiagonalise(np.asfortranarray((basis * eigenvalues) @ basis.T))


def entropy_of(eigenvalues: np.ndarray) -> float:
    shares = eigenvalues[eigenvalues > 0] / eigenvalues.sum()
    return -float(shares @ np.log(shares))


def test_x_log_x_is_followed_on_the_whole_interval() -> None:
    shifts, weights, polynomial = x_log_x()
    x = np.concatenate([[0.0], np.geomspace(1e-30, 1.0, 40_001)])
    found = np.log(x[:, None] + shifts) @ weights + np.polynomial.polynomial.polyval(x, polynomial)
    assert np.abs(found - x * np.log(np.where(x > 0, x, 1.0))).max() < TOLERANCE


SPECTRA = {
    "one": np.ones(1),
    "equal": np.ones(40),
    "one direction": np.r_[np.zeros(29), 1.0],
    "a sink": np.r_[np.geomspace(1e-12, 1e-3, 60), 1.0],
    "sixteen decades": np.geomspace(1e-16, 1.0, 80),
    "many small ones": np.r_[np.full(300, 1e-9), 1.0],
    "half zero": np.r_[np.zeros(30), np.linspace(1, 2, 30)],
}


@pytest.mark.parametrize("name", SPECTRA)
@pytest.mark.parametrize("scale", [1.0, 1e-120, 1e120])
def test_facts_agree_with_the_eigenvalues(name: str, scale: float) -> None:
    values = np.sort(SPECTRA[name])
    diagonal, off = tridiagonal(values)
    found = Spectrum(diagonal * scale, off * scale)
    assert found.entropy() == pytest.approx(entropy_of(values), abs=TOLERANCE * len(values) + 1e-13)
    assert found.total == pytest.approx(values.sum() * scale, rel=1e-13)
    assert found.largest == pytest.approx(values[-1] * scale, rel=1e-13)
    assert found.concentration == pytest.approx(float((values**2).sum() / values.sum() ** 2), rel=1e-13)
    np.testing.assert_allclose(found.eigenvalues, values * scale, rtol=0, atol=1e-14 * values[-1] * scale)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    decades=st.lists(st.floats(-18, 0), min_size=1, max_size=12),
    zeros=st.integers(0, 4),
    fraction=st.floats(1e-9, 0.99),
    seed=st.integers(0, 1000),
)
def test_facts_agree_on_random_spectra(decades: list[float], zeros: int, fraction: float, seed: int) -> None:
    values = np.sort(np.r_[np.zeros(zeros), 10.0 ** np.array(decades)])
    found = Spectrum(*tridiagonal(values, seed))
    assert found.entropy() == pytest.approx(entropy_of(values), abs=1e-11)
    assert found.largest == pytest.approx(values[-1], rel=1e-13)
    counted = found.count_above(fraction, margin=1e-12)
    away = np.abs(values - fraction * values[-1]) > 2e-12 * values[-1]
    if away.all():
        assert counted == (values > fraction * values[-1]).sum()
    smallest = found.smallest_above(1e-9)
    if values[0] > 2e-9 * values[-1]:
        assert smallest == pytest.approx(values[0], rel=1e-13 * values[-1] / values[0])
    elif values[0] < 0.5e-9 * values[-1]:
        assert smallest is None


def test_close_to_the_bound_nothing_is_claimed() -> None:
    found = Spectrum(np.array([1.0, 0.25, 0.0]), np.zeros(2))
    assert found.count_above(0.25, margin=1e-12) is None
    assert found.count_above(0.24, margin=1e-12) == 2


@pytest.mark.parametrize("size", [0, 1, 5])
def test_a_spectrum_of_zeros(size: int) -> None:
    found = Spectrum(np.zeros(size), np.zeros(max(size - 1, 0)))
    assert (found.total, found.largest, found.entropy(), found.concentration) == (0.0, 0.0, 0.0, 0.0)
    assert found.count_above(1e-8, margin=1e-12) == 0
    assert found.smallest_above(1e-9) is None
    assert found.eigenvalues.tolist() == [0.0] * size


def test_without_positive_pivots_the_eigenvalues_decide(monkeypatch: pytest.MonkeyPatch) -> None:
    diagonal, off = np.array([0.5, 0.6, -0.1]), np.zeros(2)
    asked = []
    monkeypatch.setattr(
        entropy_module, "tridiagonal_eigenvalues", lambda *given: asked.append(1) or np.sort(given[0])
    )
    assert entropy(diagonal, off) == pytest.approx(-(0.5 * np.log(0.5) + 0.6 * np.log(0.6)))
    assert asked == [1]


def test_bisection_and_counts_of_a_known_matrix() -> None:
    # The path with n = 6 vertices: 2 - 2 cos(k pi / 7).
    diagonal, off = np.full(6, 2.0), np.full(5, -1.0)
    expected = 2 - 2 * np.cos(np.arange(1, 7) * np.pi / 7)
    for index, value in enumerate(expected):
        assert tridiagonal_eigenvalue(diagonal, off, index, 0.0, 4.0) == pytest.approx(value, rel=1e-14)
    assert tridiagonal_counts(diagonal, off, 0.5, 3.9) == (1, 6)
