"""A-thm7: two layers of rank-1 heads approximate the nearest neighbour of two points by majority vote."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch

from rankfall.constructions.base import Construction, Prediction
from rankfall.constructions.network import Network
from rankfall.constructions.two_layers import sign_codes, two_layer_network
from rankfall.errors import require, require_count
from rankfall.theory.targets import uniform_sphere
from rankfall.theory.votes import majority_error


@final
@dataclass(frozen=True)
class MajorityVote(Construction):
    """H rank-1 hardmax heads with q = k uniform on the sphere vote +1 or -1; one more rank-1 head fetches the winner.

    Each head is right with probability 1/2 + asin|<w,y>|/pi, so that the error falls like sqrt(d/H).
    """

    name: ClassVar[str] = "majority-vote"
    statement: ClassVar[str] = "A-thm7"
    says: ClassVar[str] = "polynomially many rank-1 heads in two layers approximate the nearest of two points"

    dim: int
    heads: int
    points: int = 2

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require_count("heads", self.heads)
        require(
            self.heads % 2 == 1,
            required="an odd number of heads, so that no vote ties",
            got=self.heads,
            remedy=f"use {self.heads + 1}",
        )
        require(
            self.points == 2,
            required="two points for a majority",
            got=self.points,
            remedy="use PluralityVote for more",
        )

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        direction = uniform_sphere((self.heads, self.dim), generator, dtype)
        weight = torch.full((self.heads,), 1 / self.heads, dtype=dtype)
        return two_layer_network(direction, direction, weight, sign_codes(dtype))

    def predicted_error(self) -> Prediction:
        mse = 2 * majority_error(self.dim, self.heads)
        return Prediction(mse, "exact", "two orthonormal points, averaged over the random heads")
