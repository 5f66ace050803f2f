"""Everyone sees everyone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor

from rankfall.attention.masks.base import Mask, MaskFacts, everyone


@final
@dataclass(frozen=True)
class Complete(Mask):
    """The complete graph: plain bidirectional attention."""

    name: ClassVar[str] = "complete"
    meaning: ClassVar[str] = "every token sees every token"

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return torch.ones_like(i == j)

    def closed_form(self, n: int) -> MaskFacts:
        return everyone(n, radius=min(n - 1, 1), diameter=min(n - 1, 1))
