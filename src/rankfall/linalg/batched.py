"""Tridiagonal form and eigenvalues of a batch of symmetric matrices: kernels of ours on GPUs, LAPACK elsewhere."""

from __future__ import annotations

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.linalg import lapack
from rankfall.linalg.device import tridiagonal as on_gpu


def tridiagonalise(matrices: Float[Tensor, "b n n"]) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
    """Diagonal and off-diagonal of Q^T A Q, where Q leaves the first coordinate alone; the last off-diagonal is zero.

    The matrices are float64, contiguous, both halves given, and overwritten.
    """
    if matrices.is_cuda:
        return on_gpu.tridiagonalise(matrices)
    # A symmetric matrix in row order is the same one in column order.
    found = [lapack.tridiagonalise(matrix.T) for matrix in matrices.numpy()]
    diagonal = np.stack([one for one, _ in found])
    off = np.stack([np.append(one, 0.0) for _, one in found])
    return torch.from_numpy(diagonal), torch.from_numpy(off)


def tridiagonal_eigenvalues(diagonal: Float[Tensor, "b n"], off: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """All eigenvalues, smallest first; NaN where entries are no numbers. The last off-diagonal is not read."""
    if diagonal.is_cuda:
        return on_gpu.tridiagonal_eigenvalues(diagonal, off)
    return torch.from_numpy(np.stack([_eigenvalues(*one) for one in zip(diagonal.numpy(), off.numpy(), strict=True)]))


def _eigenvalues(diagonal: lapack.Vector, off: lapack.Vector) -> lapack.Vector:
    if not (np.isfinite(diagonal).all() and np.isfinite(off[:-1]).all()):
        return np.full_like(diagonal, np.nan)
    return lapack.tridiagonal_eigenvalues(diagonal, off[:-1])
