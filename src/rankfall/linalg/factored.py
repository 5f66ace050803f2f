"""A product of two thin matrices, never multiplied out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.errors import require
from rankfall.linalg.spectra import gram_eigenvalues


@final
@dataclass(frozen=True)
class Factored:
    """The d x d matrix left right^T of rank at most r, kept as its factors.

    Its spectrum comes from the triangular factors of two QR decompositions: cost r^2 d, never d^3. On GPUs, which
    take long for many thin ones, it comes from two r x r Gram matrices.
    """

    left: Tensor
    right: Tensor

    def __post_init__(self) -> None:
        require(
            self.left.shape == self.right.shape and self.left.ndim >= 2,
            required="two factors of one shape (..., d, r)",
            got=f"{tuple(self.left.shape)} and {tuple(self.right.shape)}",
            remedy="expand grouped heads first",
        )

    def singular_values(self) -> Float[Tensor, "... r"]:
        """The singular values that can differ from zero, largest first, computed in float64.

        Each is right to 1e-15 of the product of the factors' norms; on GPUs, where products are squared, to 1e-6.
        """
        left, right = self.left.double(), self.right.double()
        if left.device.type != "cpu":
            return _by_gram(left, right)
        _, left = torch.linalg.qr(left, mode="r")
        _, right = torch.linalg.qr(right, mode="r")
        return torch.linalg.svdvals(left @ right.mT)

    def trace(self) -> Float[Tensor, ...]:
        """tr(left right^T), coordinate by coordinate."""
        return (self.left.double() * self.right.double()).sum(dim=(-2, -1))

    def dense(self) -> Float[Tensor, "... d d"]:
        """The product itself, for small d and for tests."""
        return self.left @ self.right.mT


def _by_gram(left: Tensor, right: Tensor) -> Tensor:
    """(left right^T)^T (left right^T) has the eigenvalues of c^T (left^T left) c, where right^T right = c c^T."""
    inner = right.mT @ right
    rank = inner.shape[-1]
    # Columns that depend on each other leave nothing to take the root of but rounding; this is as large.
    shift = inner.diagonal(dim1=-2, dim2=-1).amax(dim=-1).clamp_min(1e-280) * (rank * torch.finfo(inner.dtype).eps)
    eye = torch.eye(rank, dtype=inner.dtype, device=inner.device)
    lower, _ = torch.linalg.cholesky_ex(inner + shift[..., None, None] * eye)
    return gram_eigenvalues(lower.mT @ (left.mT @ left) @ lower).sqrt().flip(-1)
