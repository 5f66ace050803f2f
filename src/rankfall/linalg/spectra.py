"""Singular values of token matrices: through the smaller Gram matrix, or through the SVD.

Squaring loses half the digits: a singular value s is right to about eps * (largest / s)^2 relative when it comes
from a float64 Gram matrix, so everything below 1e-8 of the largest is noise there. Sums over the spectrum do not
care; the smallest singular value and the numerical rank do, and take the SVD where the Gram matrix cannot tell.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.linalg.symmetric import symmetric_eigenvalues

# Gram eigenvalues above this share of the largest give singular values to 1e-7 relative or better.
TRUSTED_EIGENVALUE_SHARE = 1e-8


def smaller_gram(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s s"]:
    """X X^T or X^T X, whichever is smaller, in float64."""
    wide = matrix.double()
    return wide @ wide.mT if wide.shape[-2] <= wide.shape[-1] else wide.mT @ wide


def gram_eigenvalues(gram: Float[Tensor, "... s s"]) -> Float[Tensor, "... s"]:
    """Squared singular values, smallest first; rounding below zero is cut off."""
    return symmetric_eigenvalues(gram).clamp_min(0)


def singular_values(matrix: Float[Tensor, "... n d"]) -> Float[Tensor, "... s"]:
    """Singular values in float64, largest first, each right relative to the largest."""
    return torch.linalg.svdvals(matrix.double())
