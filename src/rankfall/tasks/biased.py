"""The biased, oscillating target of A-thm4: which of two points is right alternates with their score difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.tasks.base import Draws, Sample, SeparateQueries, on_sphere, orthonormal_frame
from rankfall.theory.targets import biased_target, oscillating_breakpoints


@dataclass(frozen=True)
class Biased(SeparateQueries):
    """Two orthonormal points and two queries. With s = <x1 - x2, y> and breakpoints b_1 < ... < b_m, a query outputs
    x1 where the number of breakpoints below s is even, x2 where it is odd.

    m = pieces - 1; the paper's 2d^2+1 pieces when `pieces` is None. The target is not symmetric in x1 and x2, so
    that models without positional codes cannot represent it.
    """

    pieces: int | None = None
    name: ClassVar[str] = "biased"
    summary: ClassVar[str] = "two points, the right one alternating with the score (biased:9 for 9 pieces)"

    def __post_init__(self) -> None:
        if self.pieces is not None:
            require_count("pieces", self.pieces, least=2)

    @classmethod
    def examples(cls) -> Sequence[tuple[Self, int, int]]:
        return [(cls(), 2, 4), (cls(9), 2, 8)]

    def check(self, points: int, dim: int) -> None:
        require(
            points == 2,
            required="the biased task to have exactly two points",
            got=f"points={points}",
            remedy="set points=2",
        )
        require_count("dim", dim, least=2)

    def breakpoints(self, dim: int) -> Tensor:
        """(m,) evenly spaced in (-sqrt 2, sqrt 2), the range of s."""
        if self.pieces is None:
            return oscillating_breakpoints(dim)
        steps = torch.arange(1, self.pieces, dtype=torch.float64) / self.pieces
        return math.sqrt(2.0) * (2.0 * steps - 1.0)

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        frame = orthonormal_frame(draws.normal(0, batch, points, dim))
        queries = on_sphere(draws.normal(1, batch, points, dim))
        return self.sequence(frame, queries, biased_target(frame, queries, self.breakpoints(dim)))
