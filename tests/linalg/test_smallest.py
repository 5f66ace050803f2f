"""The smallest singular value alone equals the SVD's, however small it is."""

from __future__ import annotations

import numpy as np
import pytest

from rankfall.linalg.smallest import smallest_singular_value

RELATIVE = 1e-8


def matrix_with(values: np.ndarray, n: int, d: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    left = np.linalg.qr(generator.standard_normal((n, len(values))))[0]
    right = np.linalg.qr(generator.standard_normal((d, len(values))))[0]
    return (left * values) @ right.T


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 7), (7, 1), (20, 20), (20, 33), (33, 20), (300, 320)])
@pytest.mark.parametrize("condition", [1.0, 1e3, 1e7])
def test_it_is_the_last_of_the_svd(n: int, d: int, condition: float) -> None:
    matrix = matrix_with(np.geomspace(1.0, 1 / condition, min(n, d)), n, d)
    values = np.linalg.svd(matrix, compute_uv=False)
    assert smallest_singular_value(matrix, values[0]) == pytest.approx(values[-1], rel=RELATIVE)


def test_values_that_crowd_at_the_small_end() -> None:
    values = np.concatenate([np.geomspace(1.0, 1e-5, 100), 1e-5 * (1 + 1e-4 * np.arange(40))])
    matrix = matrix_with(np.sort(values)[::-1], 140, 150)
    assert smallest_singular_value(matrix, 1.0) == pytest.approx(1e-5, rel=RELATIVE)


@pytest.mark.parametrize(("n", "d"), [(12, 20), (20, 12)])
def test_repeated_rows_and_zeros_give_zero_up_to_rounding(n: int, d: int) -> None:
    matrix = np.random.default_rng(1).standard_normal((n, d))
    small = min(n, d)
    matrix[:, small - 1 :] = 0.0 if n > d else matrix[:, small - 1 :]
    if n <= d:
        matrix[3] = matrix[5]
    largest = np.linalg.svd(matrix, compute_uv=False)[0]
    found = smallest_singular_value(matrix, largest)
    assert found is not None
    assert 0.0 <= found <= 1e-14 * largest


@pytest.mark.parametrize(("n", "d", "different"), [(16, 80, 4), (24, 40, 4), (64, 80, 20), (40, 30, 12)])
def test_rows_repeated_many_times_give_zero(n: int, d: int, different: int) -> None:
    # Solving with such a triangular factor gives numbers beyond 1e80.
    for seed in range(4):
        generator = np.random.default_rng(seed)
        matrix = generator.standard_normal((different, d))[generator.integers(0, different, n)]
        assert smallest_singular_value(matrix, float(np.linalg.norm(matrix, 2))) == 0.0


def test_a_zero_matrix() -> None:
    assert smallest_singular_value(np.zeros((4, 6)), 0.0) == 0.0
