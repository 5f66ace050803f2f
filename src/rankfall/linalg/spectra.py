"""Singular values of token matrices: through the smaller Gram matrix, or through the SVD.

Squaring loses half the digits: a singular value s is right to about eps * (largest / s)^2 relative when it comes
from a float64 Gram matrix, so everything below 1e-8 of the largest is noise there. Sums over the spectrum do not
care; the smallest singular value and the numerical rank do, and take the SVD where the Gram matrix cannot tell.

On processors, large matrices are left to NumPy, which releases the GIL: one thread for each matrix uses all cores,
which one decomposition on several threads does not. GPUs take longer than that for many small matrices, one after the
other; and for a large singular value decomposition many times as long as for eigenvalues that are the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.system import blas_threads

Matrix = npt.NDArray[Any]

# Below this many multiplications a thread costs more than it saves.
WORTH_A_THREAD = 1 << 24
# Rows that differ hardly ever agree in so many coordinates.
COMPARED = 32
# Up to this size the host is faster than a GPU.
SMALL = 128


def smaller_gram(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s s"]:
    """X X^T or X^T X, whichever is smaller, in float64."""
    wide = matrix.double() if matrix.shape[-2] <= matrix.shape[-1] else matrix.double().mT
    # NumPy computes half of a product of a matrix with its own transpose, and mirrors it.
    return _each(lambda some: some @ some.swapaxes(-2, -1), wide) if _large(wide) else wide @ wide.mT


def gram_eigenvalues(gram: Float[Tensor, "... s s"], threads: int | None = None) -> Float[Tensor, "... s"]:
    """Squared singular values, smallest first, each right relative to the largest; rounding below zero is cut off.

    `threads` is how many the host may use where there are many matrices; by default as many as PyTorch may.
    """
    given = gram.cpu() if gram.shape[-1] <= SMALL else gram
    found = _each(np.linalg.eigvalsh, given, threads) if _large(given) else torch.linalg.eigvalsh(given)
    return found.clamp_min(0).to(gram.device)


def singular_values(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s"]:
    """Singular values in float64, largest first, each right relative to the largest."""
    wide = _square(matrix.double())
    if wide.device.type != "cpu":
        return by_eigenvalues(wide)
    return _each(_singular_values, wide) if _large(wide) else torch.linalg.svdvals(wide)


def _square(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s s"]:
    """The triangular factor of a matrix that is not square, which has its singular values."""
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    if tall.shape[-2] == tall.shape[-1]:
        return tall
    return _each(_triangle, tall) if _large(tall) else torch.linalg.qr(tall, mode="r").R


def by_eigenvalues(square: Float[Tensor, "... s s"]) -> Float[Tensor, "... s"]:
    """The same as eigenvalues of [[0, A^T], [A, 0]], which are plus and minus these: nothing is squared."""
    side = square.shape[-1]
    whole = square.new_zeros(*square.shape[:-2], 2 * side, 2 * side)
    # The upper half is not read.
    whole[..., side:, :side] = square
    return torch.linalg.eigvalsh(whole)[..., side:].flip(-1).clamp_min(0)


def rows_may_repeat(matrices: Float[Tensor, "k n d"]) -> Bool[Tensor, " k"]:
    """Whether a sum over some coordinates is the same for two rows, as for equal ones; quicker than comparing all."""
    some = matrices[..., :: max(1, matrices.shape[-1] // COMPARED)]
    weights = torch.arange(1, some.shape[-1] + 1, dtype=some.dtype, device=some.device).sin()
    ordered = (some * weights).sum(dim=-1).sort(dim=-1).values
    return (ordered[:, 1:] == ordered[:, :-1]).any(dim=-1)


def distinct_rows(matrix: Float[Tensor, "n d"]) -> Float[Tensor, "m d"]:
    """Each row once, times the root of how often it is there: the same singular values, but for zeros."""
    rows, times = torch.unique(matrix, dim=0, return_counts=True)
    return rows * times.to(rows).sqrt()[:, None]


def _singular_values(matrix: Matrix) -> Matrix:
    return np.linalg.svd(matrix, compute_uv=False)


def _triangle(matrix: Matrix) -> Matrix:
    return np.asarray(np.linalg.qr(matrix, mode="r"))


def _large(matrices: Float[Tensor, "... n d"]) -> bool:
    return matrices.device.type == "cpu" and matrices.numel() * min(matrices.shape[-2:]) >= WORTH_A_THREAD


def _each(
    function: Callable[[Matrix], Matrix], matrices: Float[Tensor, "... n d"], threads: int | None = None
) -> Float[Tensor, ...]:
    """The function of stacks of matrices: so many threads, each with an equal part of them.

    NumPy lets go of the interpreter's lock once for a stack; handing it around would take longer than small matrices.
    """
    flat = matrices.detach().reshape(-1, *matrices.shape[-2:]).numpy()
    threads = threads or torch.get_num_threads()
    at_once = min(threads, len(flat))
    with blas_threads(threads // at_once):
        if at_once == 1:
            found = function(flat)
        else:
            with ThreadPoolExecutor(at_once) as pool:
                found = np.concatenate(list(pool.map(function, np.array_split(flat, at_once))))
    stacked = torch.from_numpy(found)
    return stacked.reshape(*matrices.shape[:-2], *stacked.shape[1:])
