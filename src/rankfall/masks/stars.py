"""Masks with one hub: both ways, hub to leaves, leaves to hub."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.masks.base import Mask, MaskFacts, everyone, nobody


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
