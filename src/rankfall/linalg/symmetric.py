"""Eigenvalues of a batch of symmetric matrices: on processors one sample per thread, each on one BLAS thread; on GPUs
all samples column by column.

The reduction to tridiagonal form is half matrix-vector products, which one core does as fast as two; samples side by
side use both.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.linalg import batched
from rankfall.linalg.device.tridiagonal import runs_here
from rankfall.linalg.lapack import Matrix, Vector, tridiagonal_eigenvalues, tridiagonalise
from rankfall.linalg.threads import single_threaded_blas

# Below this size starting a thread costs more than it saves.
SMALLEST = 64
# From so many matrices on, our kernels beat the vendor's solver on a GPU.
MANY = 8


def symmetric_eigenvalues(matrices: Float[Tensor, "... s s"]) -> Float[Tensor, "... s"]:
    """Eigenvalues, smallest first, in float64."""
    batch, size = matrices.shape[:-2], matrices.shape[-1]
    threads = min(torch.get_num_threads(), batch.numel())
    if batch.numel() >= MANY and size >= SMALLEST and runs_here(matrices.device, size):
        reduced = batched.tridiagonalise(matrices.detach().double().reshape(-1, size, size).clone())
        return batched.tridiagonal_eigenvalues(*reduced).reshape(*batch, size)
    if matrices.device.type != "cpu" or size < SMALLEST or threads < 2:
        return torch.linalg.eigvalsh(matrices)
    # A symmetric matrix in row order is the same one in column order, which is what LAPACK overwrites.
    copies = matrices.detach().double().reshape(-1, size, size).clone().numpy()
    with single_threaded_blas(), ThreadPoolExecutor(threads) as pool:
        found = list(pool.map(_eigenvalues, copies))
    return torch.from_numpy(np.stack(found)).reshape(*batch, size)


def _eigenvalues(matrix: Matrix) -> Vector:
    return tridiagonal_eigenvalues(*tridiagonalise(matrix.T))
