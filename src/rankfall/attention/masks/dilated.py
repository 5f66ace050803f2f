"""Everyone sees neighbours at regular gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Band, Mask, MaskFacts, everyone, nobody
from rankfall.attention.masks.window import Window
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class Dilated(Mask):
    """Dilated window: i - j is a multiple of step and at most width steps long.

    Alone it splits the tokens into `step` classes that never meet; a schedule of several steps joins them.
    """

    name: ClassVar[str] = "dilated"
    meaning: ClassVar[str] = "every token sees WIDTH tokens on either side, STEP apart"
    width: int
    step: int

    def __post_init__(self) -> None:
        require_count("the window's width", self.width)
        require_count("the dilation's step", self.step)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        gap = (i - j).abs()
        return (gap % self.step == 0) & (gap <= self.width * self.step)

    def band(self, n: int) -> Band | None:
        return Band(self.width, self.width, self.step) if 2 * self.width + 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        if self.step == 1:
            return Window(self.width).closed_form(n)
        return everyone(1, radius=0, diameter=0) if n == 1 else nobody(n)
