"""A-conj8, evidence: the vote of A-thm7 among more than two points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from rankfall.constructions.base import Construction, Prediction
from rankfall.constructions.network import Network
from rankfall.constructions.two_layers import frame_codes, two_layer_network
from rankfall.errors import require_count
from rankfall.theory.targets import uniform_sphere
from rankfall.theory.votes import plurality_error_asymptotic


@final
@dataclass(frozen=True)
class PluralityVote(Construction):
    """H rank-1 hardmax heads with q = k uniform vote for one of N points; a head of rank N fetches the winner.

    Two changes against A-thm7: layer 2 is no longer of low rank, and the heads needed grow with N. On independent
    points with N >= 3 the vote never becomes right, however many heads: points close together split it
    (`vote_quality.plurality_floor`). The prediction is for orthonormal points; for others no formula exists.
    """

    name: ClassVar[str] = "plurality-vote"
    statement: ClassVar[str] = "A-conj8"
    says: ClassVar[str] = "the vote of rank-1 heads degrades as the context grows"

    dim: int
    points: int
    heads: int

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require_count("points", self.points, least=2)
        require_count("heads", self.heads)

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        direction = uniform_sphere((self.heads, self.dim), generator, dtype)
        weight = torch.full((self.heads,), 1 / self.heads, dtype=dtype)
        return two_layer_network(direction, direction, weight, frame_codes(self.points, self.points, dtype=dtype))

    def predicted_error(self) -> Prediction:
        mse = 2 * plurality_error_asymptotic(self.dim, self.points, self.heads)
        return Prediction(mse, "asymptotic", "orthonormal points, many heads")
