"""A-fact: one full-rank head is the nearest neighbour at any context length, as its scores sharpen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from rankfall.constructions.base import Construction, Example, Law, Layer, Network, Prediction
from rankfall.errors import require, require_count
from rankfall.mechanism.heads import Heads
from rankfall.theory.one_head import full_rank_error, many_points_asymptotic


@final
@dataclass(frozen=True)
class FullRankHead(Construction):
    """Q = K = V = I and scores c <x_i, y>; c is the inverse temperature, infinite for hardmax.

    The weights do not depend on the number of points: it is only needed for the prediction.
    """

    name: ClassVar[str] = "full-rank-head"
    statement: ClassVar[str] = "A-fact"
    says: ClassVar[str] = "one head of rank d represents the nearest neighbour at any context length"

    dim: int
    points: int = 2
    inverse_temperature: float = math.inf
    law: Law = "orthonormal"

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require_count("points", self.points, least=2)
        require(
            self.inverse_temperature > 0,
            required="a positive inverse temperature",
            got=self.inverse_temperature,
            remedy="leave it out for hardmax",
        )

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [
            Example(cls(3, inverse_temperature=5.0)),
            Example(cls(16, inverse_temperature=40.0)),
            Example(cls(8, points=64), samples=3_000, law="independent"),
            # At c = 100 sqrt(d) ties of three points add a term of order 1/c.
            Example(cls(16, 8, 400.0), samples=60_000, slack=0.05),
            Example(cls(16, 8, 400.0, law="independent"), samples=60_000, law="independent", slack=0.05),
            Example(cls(16, 32, 400.0, law="independent"), samples=60_000, law="independent", slack=0.05),
        ]

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        eye = torch.eye(self.dim, dtype=dtype).unsqueeze(0)
        hard = math.isinf(self.inverse_temperature)
        heads = Heads(query=eye, key=eye, value=eye, scale=1.0 if hard else self.inverse_temperature)
        layer = Layer(heads, "hardmax" if hard else "softmax")
        return Network((layer,), dim=self.dim, width=self.dim, residual=False)

    def predicted_error(self) -> Prediction:
        c = self.inverse_temperature
        if math.isinf(c):
            return Prediction(0.0, "exact", "hardmax")
        if self.points == 2 and self.law == "orthonormal":
            return Prediction(full_rank_error(self.dim, c), "exact", "two orthonormal points, any temperature")
        independent = self.law == "independent"
        mse = many_points_asymptotic(self.dim, c, self.points, independent=independent)
        return Prediction(mse, "asymptotic", "inverse temperature well above sqrt(d log N)")
