"""Random edges."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from rankfall.attention.masks.base import Mask
from rankfall.errors import require, require_count


@final
@dataclass(frozen=True)
class RandomSparse(Mask):
    """Each ordered pair is allowed with the given probability, independently; self-loops always."""

    name: ClassVar[str] = "random"
    meaning: ClassVar[str] = "every token sees each other one with PROBABILITY, drawn with SEED"
    probability: float
    seed: int = 0

    def __post_init__(self) -> None:
        require(
            0 <= self.probability <= 1,
            required="the probability of an edge to lie between 0 and 1",
            got=self.probability,
            remedy="for example random:0.2",
        )
        require_count("the seed", self.seed, least=0)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return _draw(self.probability, self.seed, n).to(i.device)[i, j]


@lru_cache(maxsize=32)
def _draw(probability: float, seed: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.rand(n, n, generator=generator) < probability
    return edges | torch.eye(n, dtype=torch.bool)
