"""What a mask is: a directed graph over the tokens, given by one predicate on positions.

Convention: entry (i, j) is true when token i attends to token j. As a graph that is an edge j -> i, the way
information flows. Every token attends to itself (a self-loop), as the collapse theorems require.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from typing import ClassVar

import torch
from torch import Tensor

from rankfall.errors import require_count


@dataclass(frozen=True)
class MaskFacts:
    """What the theorems ask of a mask's graph.

    A root is a token from which every token is reached. The radius is the least eccentricity of a root (None
    without a root); the diameter is the longest distance between any two tokens (None unless strongly connected).
    """

    tokens: int
    roots: tuple[int, ...]
    radius: int | None
    diameter: int | None

    @property
    def strongly_connected(self) -> bool:
        """Every token reaches every token."""
        return len(self.roots) == self.tokens

    @property
    def quasi_strongly_connected(self) -> bool:
        """Some token reaches every token."""
        return bool(self.roots)


@dataclass(frozen=True)
class Band:
    """Token i sees no further than i + step * k for k from -lower to upper: attention can follow the band."""

    lower: int
    upper: int
    step: int = 1

    @property
    def width(self) -> int:
        """Keys per query, at most."""
        return self.lower + self.upper + 1


@dataclass(frozen=True)
class Mask(ABC):
    """A pattern for any number of tokens. Subclasses are final frozen dataclasses holding their parameters."""

    name: ClassVar[str]
    meaning: ClassVar[str]

    @abstractmethod
    def allows(self, i: Tensor, j: Tensor, n: int) -> Tensor:
        """Whether token i attends to token j, elementwise on positions that broadcast; n is the token count."""

    def band(self, n: int) -> Band | None:
        """The band that holds every allowed pair, when it is narrower than the whole matrix."""
        return None

    def closed_form(self, n: int) -> MaskFacts | None:
        """Facts by formula; None when only a graph search can tell."""
        return None

    def dense(self, n: int, device: torch.device | str | None = None) -> Tensor:
        """The mask as an (n, n) boolean matrix."""
        self.check(n)
        positions = torch.arange(n, device=device)
        return self.allows(positions[:, None], positions[None, :], n).expand(n, n)

    def facts(self, n: int) -> MaskFacts:
        """Roots, radius, diameter and connectivity at n tokens."""
        from rankfall.attention.masks.graph import graph_facts

        self.check(n)
        return self.closed_form(n) or graph_facts(self.dense(n))

    def check(self, n: int) -> None:
        """Refuse a token count that this mask cannot serve."""
        require_count("the number of tokens", n)

    def __str__(self) -> str:
        """The argument that `parse_mask` reads back."""
        return ":".join([self.name, *(str(getattr(self, field.name)) for field in fields(self))])


def everyone(n: int, radius: int, diameter: int) -> MaskFacts:
    """Facts of a strongly connected mask, whose every token is a root."""
    return MaskFacts(n, tuple(range(n)), radius, diameter)


def nobody(n: int) -> MaskFacts:
    """Facts of a mask from no token of which all others are reached."""
    return MaskFacts(n, (), None, None)


def ceil_div(a: int, b: int) -> int:
    """The quotient rounded up."""
    return -(-a // b)
