"""Eigenvalues of many symmetric matrices at once, by kernels of our own: every launch works on a column of them all.

The vendor's solver takes the matrices of a batch nearly one after the other.
"""

from __future__ import annotations

import importlib.util
import warnings
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import pad

MOST = 4096
"""Largest size: a program holds at least one row."""
NUMBERS, NUMBERS_PER_WARP, MOST_ROWS = 4096, 1024, 8
"""Of the matrix in one program; the fastest of several on an H200."""
COLUMNS_BETWEEN_CUTS = 32
"""Columns after which what is done is left out of the launches."""
ROUNDS, POINTS, EACH = 17, 8, 16
"""Nine to the seventeenth is 1e16: all that float64 holds."""
SMALLEST_PIVOT = 1e-25
"""Far below the rounding of entries up to one, far above the least that float32 holds."""
SLACK = 1e-15
"""What rounding may have put outside the bounds, of entries up to one."""


def runs_here(device: torch.device, size: int) -> bool:
    """Whether the kernels take matrices of this size on this device."""
    return device.type == "cuda" and size <= MOST and _works_on(device)


@cache
def _works_on(device: torch.device) -> bool:
    """Tried out once: Triton may be missing, or find no compiler, or not know the GPU."""
    if importlib.util.find_spec("triton") is None:
        return False
    try:
        tridiagonal_eigenvalues(*tridiagonalise(torch.eye(2, dtype=torch.float64, device=device)[None]))
    except Exception as reason:
        warnings.warn(f"no kernels of ours on {device}: {reason}", RuntimeWarning, stacklevel=3)
        return False
    return True


def tridiagonalise(matrices: Float[Tensor, "b n n"]) -> tuple[Float[Tensor, "b n"], Float[Tensor, "b n"]]:
    """Diagonal and off-diagonal of Q^T A Q, where Q leaves the first coordinate alone; the last off-diagonal is zero.

    The matrices are float64, contiguous, both halves given, and overwritten.
    """
    from rankfall.linalg.device.householder import reduce_column

    batch, size = matrices.shape[:2]
    handed_on = matrices.new_empty(3, 2, batch, size)
    diagonal, off, factors = matrices.new_empty(3, batch, size)
    rows, reflectors, products = handed_on
    rows[0] = matrices[:, 0]
    for first in range(0, size, COLUMNS_BETWEEN_CUTS):
        rest = size - first
        block = max(16, _power(rest))
        each = min(MOST_ROWS, NUMBERS // block)
        for column in range(first, min(first + COLUMNS_BETWEEN_CUTS, size)):
            reduce_column[(-(-rest // each), batch)](
                matrices, rows, reflectors, products, factors, diagonal, off, size, first, column,
                BLOCK=block, ROWS=each, num_warps=max(1, each * block // NUMBERS_PER_WARP),
            )  # fmt: skip
    return diagonal, off


def tridiagonal_eigenvalues(diagonal: Float[Tensor, "b n"], off: Float[Tensor, "b n"]) -> Float[Tensor, "b n"]:
    """All eigenvalues, smallest first, each right to 1e-15 of the largest. The last off-diagonal is not read."""
    from rankfall.linalg.device.sturm import count_and_narrow

    batch, size = diagonal.shape
    before = pad(off[:, :-1], (1, 0))
    reach = before.abs() + pad(off[:, :-1].abs(), (0, 1))
    low, high = (diagonal - reach).amin(dim=-1), (diagonal + reach).amax(dim=-1)
    scale = torch.maximum(low.abs(), high.abs())
    scale = scale.where(scale > 0, 1.0)[:, None]
    bounds = torch.stack([low, high], dim=-1) / scale
    bounds[:, 0] -= SLACK
    bounds[:, 1] += SLACK
    values = torch.empty_like(diagonal)
    count_and_narrow[(-(-size // EACH), batch)](
        diagonal / scale, (before / scale).square(), bounds, values, size, SMALLEST_PIVOT,
        ROUNDS=ROUNDS, EACH=EACH, POINTS=POINTS,
        NATIVE=diagonal.is_cuda and torch.version.hip is None, num_warps=EACH * POINTS // 32,
    )  # fmt: skip
    return values * scale


def _power(size: int) -> int:
    return 1 << (size - 1).bit_length()
