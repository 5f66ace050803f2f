"""A hub that sees all leaves, none of which sees anybody."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts, nobody


@final
@dataclass(frozen=True)
class InStar(Mask):
    """Information flows into the hub, token 0: from three tokens on nobody reaches all, and nothing collapses."""

    name: ClassVar[str] = "in-star"
    meaning: ClassVar[str] = "the first token sees all; the others see only themselves"

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i == j) | (i == 0)

    def closed_form(self, n: int) -> MaskFacts:
        if n >= 3:
            return nobody(n)
        return MaskFacts(n, (n - 1,), radius=n - 1, diameter=0 if n == 1 else None)
