"""A few tokens see and are seen by all; the others see their neighbours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts, everyone
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class GlobalWindow(Mask):
    """The first `hubs` tokens are global; the rest have a sliding window."""

    name: ClassVar[str] = "global-window"
    meaning: ClassVar[str] = "the first HUBS tokens see and are seen by all, the others see WIDTH on either side"
    hubs: int
    width: int

    def __post_init__(self) -> None:
        require_count("the number of global tokens", self.hubs)
        require_count("the window's width", self.width)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i < self.hubs) | (j < self.hubs) | ((i - j).abs() <= self.width)

    def closed_form(self, n: int) -> MaskFacts:
        farthest_local_gap = n - 1 - self.hubs
        diameter = 2 if farthest_local_gap > self.width else min(n - 1, 1)
        return everyone(n, radius=min(n - 1, 1), diameter=diameter)
