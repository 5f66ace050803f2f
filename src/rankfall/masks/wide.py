"""Masks with edges over any distance: complete, causal, prefix, separate blocks, random."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, final

import torch
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.masks.base import Band, Mask, MaskFacts, everyone, nobody


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


@final
@dataclass(frozen=True)
class Prefix(Mask):
    """Prefix language model: complete on the first `length` tokens, causal after them."""

    name: ClassVar[str] = "prefix"
    meaning: ClassVar[str] = "every token sees the first LENGTH tokens and all earlier ones"
    length: int

    @classmethod
    def examples(cls) -> tuple[Prefix, ...]:
        return cls(8), cls(2), cls(3)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return (j <= i) | (j < self.length)

    def closed_form(self, n: int) -> MaskFacts:
        roots = tuple(range(min(self.length, n)))
        reach = min(n - 1, 1)
        return MaskFacts(n, roots, radius=reach, diameter=reach if len(roots) == n else None)


@final
@dataclass(frozen=True)
class BlockDiagonal(Mask):
    """Packed sequences or local blocks: complete inside each block of `size` tokens, nothing between blocks."""

    name: ClassVar[str] = "block-diagonal"
    meaning: ClassVar[str] = "every token sees the tokens of its own block of SIZE"
    size: int

    @classmethod
    def examples(cls) -> tuple[BlockDiagonal, ...]:
        return cls(8), cls(2), cls(3)

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return i // self.size == j // self.size

    def band(self, n: int) -> Band | None:
        return Band(self.size - 1, self.size - 1) if 2 * self.size - 1 < n else None

    def closed_form(self, n: int) -> MaskFacts:
        return everyone(n, radius=min(n - 1, 1), diameter=min(n - 1, 1)) if self.size >= n else nobody(n)


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

    @classmethod
    def examples(cls) -> tuple[RandomSparse, ...]:
        return cls(0.2), cls(0.4, 3), cls(0.5, 1)

    @classmethod
    def from_matrix(cls, allowed: Tensor) -> None:
        """A draw does not tell its seed: such a matrix is recognised as explicit."""

    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        return _draw(self.probability, self.seed, n).to(i.device)[i, j]


@lru_cache(maxsize=32)
def _draw(probability: float, seed: int, n: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    edges = torch.rand(n, n, generator=generator) < probability
    return edges | torch.eye(n, dtype=torch.bool)
