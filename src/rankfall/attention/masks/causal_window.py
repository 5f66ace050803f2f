"""Everyone sees itself and the nearest past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Band, Mask, MaskFacts, ceil_div
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class CausalWindow(Mask):
    """One-directional sliding window: 0 <= i - j <= width."""

    name: ClassVar[str] = "causal-window"
    meaning: ClassVar[str] = "every token sees itself and WIDTH earlier ones"
    width: int

    def __post_init__(self) -> None:
        require_count("the window's width", self.width)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (j <= i) & (i - j <= self.width)

    def band(self, n: int) -> Band | None:
        return Band(self.width, 0) if self.width + 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        return MaskFacts(n, (0,), radius=ceil_div(n - 1, self.width), diameter=0 if n == 1 else None)
