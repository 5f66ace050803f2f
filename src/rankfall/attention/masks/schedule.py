"""Masks that change from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch

from rankfall.attention.masks.base import Mask, MaskFacts
from rankfall.attention.masks.explicit import Explicit
from rankfall.attention.masks.graph import graph_facts
from rankfall.errors import require


@final
@dataclass(frozen=True)
class MaskSchedule:
    """One mask per layer, repeated with its period. What counts for collapse is the union graph over a period."""

    masks: tuple[Mask, ...]

    def __post_init__(self) -> None:
        require(
            len(self.masks) > 0,
            required="at least one mask in a schedule",
            got="none",
            remedy="give the masks of one period",
        )

    @property
    def period(self) -> int:
        """After how many layers the masks repeat."""
        return len(self.masks)

    def at(self, layer: int) -> Mask:
        """The mask of that layer, counted from 0."""
        return self.masks[layer % self.period]

    def union(self, n: int) -> Explicit:
        """All edges that occur within one period."""
        return Explicit(torch.stack([mask.dense(n) for mask in self.masks]).any(dim=0))

    def facts(self, n: int) -> MaskFacts:
        """Facts of the union graph (of the mask itself, when there is only one)."""
        return self.masks[0].facts(n) if self.period == 1 else graph_facts(self.union(n).allowed)

    def __str__(self) -> str:
        return "+".join(str(mask) for mask in self.masks)
