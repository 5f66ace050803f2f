"""Singular values of token matrices: through the smaller Gram matrix, or through the SVD.

Squaring loses half the digits: a singular value s is right to about eps * (largest / s)^2 relative when it comes
from a float64 Gram matrix, so everything below 1e-8 of the largest is noise there. Sums over the spectrum do not
care; the smallest singular value and the numerical rank do, and take the SVD where the Gram matrix cannot tell.

On processors, large matrices are left to NumPy, which releases the GIL: one thread for each matrix uses all cores,
which one decomposition on several threads does not.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.system import blas_threads

Matrix = npt.NDArray[Any]

# Below this many multiplications a thread costs more than it saves.
WORTH_A_THREAD = 1 << 24


def smaller_gram(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s s"]:
    """X X^T or X^T X, whichever is smaller, in float64."""
    wide = matrix.double() if matrix.shape[-2] <= matrix.shape[-1] else matrix.double().mT
    # NumPy computes half of a product of a matrix with its own transpose, and mirrors it.
    return _each(lambda one: one @ one.T, wide) if _large(wide) else wide @ wide.mT


def gram_eigenvalues(gram: Float[Tensor, "... s s"]) -> Float[Tensor, "... s"]:
    """Squared singular values, smallest first, each right relative to the largest; rounding below zero is cut off."""
    found = _each(np.linalg.eigvalsh, gram) if _large(gram) else torch.linalg.eigvalsh(gram)
    return found.clamp_min(0)


def singular_values(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s"]:
    """Singular values in float64, largest first, each right relative to the largest."""
    wide = matrix.double()
    return _each(_singular_values, wide) if _large(wide) else torch.linalg.svdvals(wide)


def _singular_values(matrix: Matrix) -> Matrix:
    return np.linalg.svd(matrix, compute_uv=False)


def _large(matrices: Float[Tensor, "... n d"]) -> bool:
    return matrices.device.type == "cpu" and matrices.numel() * min(matrices.shape[-2:]) >= WORTH_A_THREAD


def _each(function: Callable[[Matrix], Matrix], matrices: Float[Tensor, "... n d"]) -> Float[Tensor, ...]:
    """The function of each matrix, as many at once as PyTorch may use threads."""
    flat = matrices.detach().reshape(-1, *matrices.shape[-2:])
    threads = torch.get_num_threads()
    at_once = min(threads, len(flat))
    with blas_threads(threads // at_once), ThreadPoolExecutor(at_once) as pool:
        found = torch.from_numpy(np.stack(list(pool.map(function, flat.numpy()))))
    return found.reshape(*matrices.shape[:-2], *found.shape[1:])
