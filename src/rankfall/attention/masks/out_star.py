"""A hub that all leaves see and that sees nobody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts


@final
@dataclass(frozen=True)
class OutStar(Mask):
    """Information flows out of the hub, token 0, and nowhere else."""

    name: ClassVar[str] = "out-star"
    meaning: ClassVar[str] = "every token sees itself and the first one"

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i == j) | (j == 0)

    def closed_form(self, n: int) -> MaskFacts:
        return MaskFacts(n, (0,), radius=min(n - 1, 1), diameter=0 if n == 1 else None)
