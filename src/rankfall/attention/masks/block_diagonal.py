"""Separate blocks that never meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Band, Mask, MaskFacts, everyone, nobody
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class BlockDiagonal(Mask):
    """Packed sequences or local blocks: complete inside each block of `size` tokens, nothing between blocks."""

    name: ClassVar[str] = "block-diagonal"
    meaning: ClassVar[str] = "every token sees the tokens of its own block of SIZE"
    size: int

    def __post_init__(self) -> None:
        require_count("the block's size", self.size)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return i // self.size == j // self.size

    def band(self, n: int) -> Band | None:
        return Band(self.size - 1, self.size - 1) if 2 * self.size - 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        return everyone(n, radius=min(n - 1, 1), diameter=min(n - 1, 1)) if self.size >= n else nobody(n)
