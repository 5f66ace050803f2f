"""What a measure is: one number per token matrix, with its definition, its range and what leaves it unchanged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

from torch import Tensor

from rankfall.measures.profile import Profile

Invariance = Literal["permutation", "rotation", "scale", "translation"]
"""Reordering tokens; an orthogonal map of every token; one factor for all; one vector added to all."""

Range = Callable[[int, int], tuple[float, float]]
"""Least and greatest value for n tokens of width d."""

SHAPE_ONLY: frozenset[Invariance] = frozenset({"permutation", "rotation", "scale"})
SIZE_TOO: frozenset[Invariance] = frozenset({"permutation", "rotation"})


@final
@dataclass(frozen=True)
class Measure:
    """A named function of a profile. `degree` is the power with which it grows when all tokens are scaled."""

    name: str
    definition: str
    function: Callable[[Profile], Tensor]
    range: Range
    invariances: frozenset[Invariance]
    degree: int = 0

    def of(self, profile: Profile) -> Tensor:
        """The measure of the tokens at their true size."""
        return self.function(profile) * profile.size**self.degree


def rank_range(n: int, d: int) -> tuple[float, float]:
    """Ranks of any kind: 0 for the zero matrix, else from 1 to min(n, d)."""
    return 0.0, float(min(n, d))


def share_range(n: int, d: int) -> tuple[float, float]:
    """Shares lie between 0 and 1."""
    return 0.0, 1.0


def size_range(n: int, d: int) -> tuple[float, float]:
    """Lengths are not negative."""
    return 0.0, float("inf")


def ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """A ratio whose denominator is zero only when the tokens are, and which is zero then."""
    return numerator / denominator.where(denominator > 0, 1.0)
