"""Two spectra from one reduction, each equal to its own eigenvalue problem."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from rankfall.linalg.lapack import tridiagonal_eigenvalues, tridiagonalise
from rankfall.linalg.pairs import mirror, reduce_along, reflect

# Relative to the largest eigenvalue.
TOLERANCE = 1e-13


def semidefinite(size: int, seed: int = 0) -> np.ndarray:
    factor = np.random.default_rng(seed).standard_normal((size, size + 3))
    return factor @ factor.T


@pytest.mark.parametrize("size", [1, 2, 3, 17, 80])
def test_spectrum_of_the_matrix_and_of_its_compression(size: int) -> None:
    matrix = semidefinite(size)
    direction = np.random.default_rng(1).standard_normal(size)
    reduced = reduce_along(matrix, direction)
    scale = np.linalg.norm(matrix, 2)
    np.testing.assert_allclose(
        reduced.spectrum().eigenvalues, np.linalg.eigvalsh(matrix), atol=TOLERANCE * scale, rtol=0
    )
    basis = np.linalg.svd(direction[None, :])[2][1:]
    compressed = np.linalg.eigvalsh(basis @ matrix @ basis.T) if size > 1 else np.empty(0)
    np.testing.assert_allclose(reduced.spectrum_without().eigenvalues, compressed, atol=TOLERANCE * scale, rtol=0)


@pytest.mark.parametrize("added", [2.5, 1e4])
def test_spectrum_with_the_direction_added(added: float) -> None:
    matrix, direction = semidefinite(30), np.random.default_rng(2).standard_normal(30)
    unit = direction / np.linalg.norm(direction)
    expected = np.linalg.eigvalsh(matrix + added * np.outer(unit, unit))
    found = reduce_along(matrix, direction).spectrum(added).eigenvalues
    np.testing.assert_allclose(found, expected, atol=TOLERANCE * expected[-1], rtol=0)


def test_a_zero_direction_is_no_direction() -> None:
    matrix = semidefinite(9)
    found = reduce_along(matrix, np.zeros(9)).spectrum().eigenvalues
    np.testing.assert_allclose(found, np.linalg.eigvalsh(matrix), atol=TOLERANCE * found[-1], rtol=0)


def test_the_mirror_turns_the_direction_into_the_first_axis() -> None:
    direction = np.array([0.0, 3.0, 4.0])
    v = mirror(direction)
    image = direction - 2 * (v @ direction) * v
    np.testing.assert_allclose(np.abs(image), [5.0, 0.0, 0.0], atol=1e-15)
    reflection = np.eye(3) - 2 * np.outer(v, v)
    matrix = semidefinite(3)
    expected = np.tril(reflection @ matrix @ reflection)
    np.testing.assert_allclose(np.tril(reflect(matrix, v)), expected, atol=1e-13)


def test_threads_do_not_disturb_each_other() -> None:
    matrices = [semidefinite(60, seed) for seed in range(8)]
    found: dict[int, np.ndarray] = {}

    def work(index: int) -> None:
        for _ in range(5):
            found[index] = tridiagonal_eigenvalues(*tridiagonalise(np.asfortranarray(matrices[index])))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, matrix in enumerate(matrices):
        expected = np.linalg.eigvalsh(matrix)
        np.testing.assert_allclose(found[index], expected, atol=TOLERANCE * expected[-1], rtol=0)


def test_a_matrix_in_row_order_is_refused() -> None:
    with pytest.raises(TypeError, match="column order"):
        tridiagonalise(np.zeros((3, 2))[:, ::-1])
