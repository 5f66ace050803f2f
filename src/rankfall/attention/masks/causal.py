"""Everyone sees itself and the past."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts


@final
@dataclass(frozen=True)
class Causal(Mask):
    """Decoder attention. Only the first token is a root, and it reaches all others at once."""

    name: ClassVar[str] = "causal"
    meaning: ClassVar[str] = "every token sees itself and all earlier ones"

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return j <= i

    def closed_form(self, n: int) -> MaskFacts:
        return MaskFacts(n, (0,), radius=min(n - 1, 1), diameter=0 if n == 1 else None)
