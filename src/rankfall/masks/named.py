"""Masks by name and by matrix, and schedules of masks that change from layer to layer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool
from torch import Tensor

from rankfall.catalogue import MASKS
from rankfall.errors import require
from rankfall.masks.base import Explicit, Mask, MaskFacts, check_allowed, graph_facts
from rankfall.registry import made


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

    @classmethod
    def of(cls, masks: Mask | MaskSchedule) -> MaskSchedule:
        """The schedule itself, or that of one mask in every layer."""
        return masks if isinstance(masks, MaskSchedule) else cls((masks,))

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

    def largest_degree(self, n: int) -> int:
        """The most tokens that any of n tokens sees in any layer."""
        return max(int(mask.pairs(n)[0].bincount().max()) for mask in self.masks)

    def __str__(self) -> str:
        return "+".join(str(mask) for mask in self.masks)


def parse_mask(text: str) -> Mask:
    """The mask that an argument such as `causal`, `window:4` or `random:0.2:7` names."""
    return made(MASKS, text)


def parse_schedule(text: str) -> MaskSchedule:
    """A schedule: masks joined by `+`, one per layer of a period, for example `window:4+dilated:4:4`."""
    return MaskSchedule(tuple(parse_mask(part) for part in text.split("+")))


def recognise(allowed: Bool[Tensor, "n n"]) -> Mask:
    """The first mask of the catalogue whose matrix this is, or the matrix itself as `Explicit`.

    Small matrices belong to several masks: at two tokens a causal mask is also a causal window.
    """
    check_allowed(allowed)
    matrix = allowed.cpu()
    found = (kind.from_matrix(matrix) for kind in MASKS)
    return next((mask for mask in found if mask is not None), None) or Explicit(matrix)
