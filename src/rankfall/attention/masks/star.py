"""A hub and leaves that see each other only through it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts, everyone


@final
@dataclass(frozen=True)
class Star(Mask):
    """Token 0 is the hub: it sees all leaves and all leaves see it."""

    name: ClassVar[str] = "star"
    meaning: ClassVar[str] = "the first token sees all and is seen by all; the others see only it and themselves"

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i == j) | (i == 0) | (j == 0)

    def closed_form(self, n: int) -> MaskFacts:
        return everyone(n, radius=min(n - 1, 1), diameter=min(n - 1, 2))
