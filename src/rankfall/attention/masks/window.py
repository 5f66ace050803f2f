"""Everyone sees the neighbours on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Band, Mask, MaskFacts, ceil_div, everyone
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class Window(Mask):
    """Sliding window: |i - j| <= width. A window of n or more is the complete mask."""

    name: ClassVar[str] = "window"
    meaning: ClassVar[str] = "every token sees WIDTH tokens on either side"
    width: int

    def __post_init__(self) -> None:
        require_count("the window's width", self.width)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i - j).abs() <= self.width

    def band(self, n: int) -> Band | None:
        return Band(self.width, self.width) if 2 * self.width + 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        return everyone(n, radius=ceil_div(n // 2, self.width), diameter=ceil_div(n - 1, self.width))
