"""Masks that let a token see its neighbours: windows, gaps, rings, and windows with a few global tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.masks.base import Band, Mask, MaskFacts, ceil_div, everyone, nobody


@final
@dataclass(frozen=True)
class Window(Mask):
    """Sliding window: |i - j| <= width. A window of n or more is the complete mask."""

    name: ClassVar[str] = "window"
    meaning: ClassVar[str] = "every token sees WIDTH tokens on either side"
    width: int

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i - j).abs() <= self.width

    def band(self, n: int) -> Band | None:
        return Band(self.width, self.width) if 2 * self.width + 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        return everyone(n, radius=ceil_div(n // 2, self.width), diameter=ceil_div(n - 1, self.width))


@final
@dataclass(frozen=True)
class CausalWindow(Mask):
    """One-directional sliding window: 0 <= i - j <= width."""

    name: ClassVar[str] = "causal-window"
    meaning: ClassVar[str] = "every token sees itself and WIDTH earlier ones"
    width: int

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (j <= i) & (i - j <= self.width)

    def band(self, n: int) -> Band | None:
        return Band(self.width, 0) if self.width + 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        return MaskFacts(n, (0,), radius=ceil_div(n - 1, self.width), diameter=0 if n == 1 else None)


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

    @classmethod
    def examples(cls) -> tuple[Dilated, ...]:
        return cls(4, 2), cls(1, 2), cls(2, 3), cls(2, 1)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        gap = (i - j).abs()
        return (gap % self.step == 0) & (gap <= self.width * self.step)

    def band(self, n: int) -> Band | None:
        return Band(self.width, self.width, self.step) if 2 * self.width + 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        if self.step == 1:
            return Window(self.width).closed_form(n)
        return everyone(1, radius=0, diameter=0) if n == 1 else nobody(n)


@final
@dataclass(frozen=True)
class GlobalWindow(Mask):
    """The first `hubs` tokens are global; the rest have a sliding window."""

    name: ClassVar[str] = "global-window"
    meaning: ClassVar[str] = "the first HUBS tokens see and are seen by all, the others see WIDTH on either side"
    hubs: int
    width: int

    @classmethod
    def examples(cls) -> tuple[GlobalWindow, ...]:
        return cls(1, 4), cls(1, 1), cls(2, 1)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (i < self.hubs) | (j < self.hubs) | ((i - j).abs() <= self.width)

    def closed_form(self, n: int) -> MaskFacts:
        farthest_local_gap = n - 1 - self.hubs
        diameter = 2 if farthest_local_gap > self.width else min(n - 1, 1)
        return everyone(n, radius=min(n - 1, 1), diameter=diameter)


@final
@dataclass(frozen=True)
class Ring(Mask):
    """A sliding window whose ends are joined: the mask of the stable twisted states (B-thm2's boundary)."""

    name: ClassVar[str] = "ring"
    meaning: ClassVar[str] = "every token sees WIDTH tokens on either side, the last next to the first"
    width: int

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        gap = (i - j).abs()
        return (gap <= self.width) | (gap >= n - self.width)

    def closed_form(self, n: int) -> MaskFacts:
        farthest = ceil_div(n // 2, self.width)
        return everyone(n, radius=farthest, diameter=farthest)
