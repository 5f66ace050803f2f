"""A mask given as a matrix."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rankfall.attention.masks.base import Mask
from rankfall.errors import require


@final
@dataclass(frozen=True, eq=False)
class Explicit(Mask):
    """Any boolean (n, n) tensor with a true diagonal."""

    name: ClassVar[str] = "explicit"
    meaning: ClassVar[str] = "the given matrix"
    allowed: Tensor

    def __post_init__(self) -> None:
        check_allowed(self.allowed)
        require(
            self.allowed.ndim == 2,
            required="one square matrix",
            got=f"shape {tuple(self.allowed.shape)}",
            remedy="give one mask at a time; a batch of masks goes to attention as a tensor",
        )

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return self.allowed.to(i.device)[i, j]

    def check(self, n: int) -> None:
        size = self.allowed.shape[-1]
        require(
            n == size,
            required=f"{size} tokens, the size of the given mask",
            got=n,
            remedy="give a mask of the tokens' size",
        )

    def __str__(self) -> str:
        return f"explicit({self.allowed.shape[-1]})"


def check_allowed(allowed: Tensor) -> None:
    """Refuse what is not a stack of square boolean matrices with true diagonals."""
    require(
        allowed.dtype == torch.bool,
        required="a boolean mask",
        got=f"dtype {allowed.dtype}",
        remedy="compare first, for example `mask > 0`",
    )
    require(
        allowed.ndim >= 2 and allowed.shape[-1] == allowed.shape[-2] and allowed.shape[-1] > 0,
        required="a square mask with at least one token",
        got=f"shape {tuple(allowed.shape)}",
        remedy="give an (n, n) matrix with n >= 1",
    )
    looped = torch.diagonal(allowed, dim1=-2, dim2=-1)
    if not bool(looped.all()):
        bare = int((~looped).nonzero()[0, -1])
        require(
            False,
            required="every token to attend to itself",
            got=f"no self-loop at token {bare}",
            remedy="add the diagonal: `mask | torch.eye(n, dtype=torch.bool)`",
        )
