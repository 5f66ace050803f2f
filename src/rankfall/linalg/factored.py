"""A product of two thin matrices, never multiplied out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.errors import require


@final
@dataclass(frozen=True)
class Factored:
    """The d x d matrix left right^T of rank at most r, kept as its factors.

    Its spectrum comes from the triangular factors of two QR decompositions: cost r^2 d, never d^3.
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
        """The singular values that can differ from zero, largest first, computed in float64."""
        _, left = torch.linalg.qr(self.left.double(), mode="r")
        _, right = torch.linalg.qr(self.right.double(), mode="r")
        return torch.linalg.svdvals(left @ right.mT)

    def trace(self) -> Float[Tensor, ...]:
        """tr(left right^T), coordinate by coordinate."""
        return (self.left.double() * self.right.double()).sum(dim=(-2, -1))

    def dense(self) -> Float[Tensor, "... d d"]:
        """The product itself, for small d and for tests."""
        return self.left @ self.right.mT
