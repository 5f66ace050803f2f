"""A prefix that everyone sees whole; the past otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class Prefix(Mask):
    """Prefix language model: complete on the first `length` tokens, causal after them."""

    name: ClassVar[str] = "prefix"
    meaning: ClassVar[str] = "every token sees the first LENGTH tokens and all earlier ones"
    length: int

    def __post_init__(self) -> None:
        require_count("the prefix's length", self.length)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (j <= i) | (j < self.length)

    def closed_form(self, n: int) -> MaskFacts:
        roots = tuple(range(min(self.length, n)))
        reach = min(n - 1, 1)
        return MaskFacts(n, roots, radius=reach, diameter=reach if len(roots) == n else None)
