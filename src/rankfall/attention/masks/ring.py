"""Neighbours on a circle."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts, ceil_div, everyone
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class Ring(Mask):
    """A sliding window whose ends are joined: the mask of the stable twisted states (B-thm2's boundary)."""

    name: ClassVar[str] = "ring"
    meaning: ClassVar[str] = "every token sees WIDTH tokens on either side, the last next to the first"
    width: int

    def __post_init__(self) -> None:
        require_count("the window's width", self.width)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        gap = (i - j).abs()
        return (gap <= self.width) | (gap >= n - self.width)

    def closed_form(self, n: int) -> MaskFacts:
        farthest = ceil_div(n // 2, self.width)
        return everyone(n, radius=farthest, diameter=farthest)
