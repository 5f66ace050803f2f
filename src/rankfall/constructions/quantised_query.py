"""The plane, A-thm2 in small: rank-1 heads with turned keys round the query to a grid of directions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from rankfall.constructions.base import Construction, Prediction
from rankfall.constructions.network import Network
from rankfall.constructions.plane import rank_one_layer, require_plane, unit_vectors
from rankfall.errors import require, require_count


@final
@dataclass(frozen=True)
class QuantisedQuery(Construction):
    """H rank-1 hardmax heads (H even) of weights +-1/2 that round the query to H equally spaced directions: MSE 1/H.

    With queries q_h at angles 2 pi h/H, sgn<q_h,y> - sgn<q_(h-1),y> is +-2 for exactly one h, the one whose line y
    has just crossed. Pairing q_h and q_(h-1) with ONE key, the middle of that cell, all heads cancel but one pair,
    which outputs sgn<y', w> for the cell's middle y'. Rounding moves y by pi/(2H) on average, so that the choice is
    wrong with probability 1/(2H). This is how low rank succeeds: by a grid of directions. In the plane a grid of H
    cells costs H heads; on the sphere of R^d it costs about (1/error)^(d-1), the price in A-thm2.
    """

    name: ClassVar[str] = "quantised-query"
    statement: ClassVar[str] = "A-thm2"
    says: ClassVar[str] = "in the plane, H rank-1 heads with turned keys reach the error 1/H exactly"

    heads: int
    dim: int = 2
    points: int = 2

    def __post_init__(self) -> None:
        require_count("heads", self.heads, least=2)
        require(
            self.heads % 2 == 0,
            required="an even number of heads: they come in pairs",
            got=self.heads,
            remedy=f"use {self.heads + 1}",
        )
        require_plane(self)

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        lines = self.heads // 2
        step = math.pi / lines
        angle = step * torch.arange(lines, dtype=dtype)
        # sgn<q_h,y> - sgn<q_(h-1),y> is not zero where y is within half a step of (q_h + q_(h-1))/2 turned by +-90
        # degrees; the middle of that cell is the key.
        middle = unit_vectors(angle - step / 2 + math.pi / 2)
        query = torch.cat([unit_vectors(angle), unit_vectors(angle - step)])
        key = torch.cat([middle, middle])
        weight = torch.cat([torch.full((lines,), 0.5, dtype=dtype), torch.full((lines,), -0.5, dtype=dtype)])
        # A head with both key and weight negated gives the same difference; one such flip makes the weights sum to 1.
        key[-1], weight[-1] = -key[-1], -weight[-1]
        return rank_one_layer(query, key, weight)

    def predicted_error(self) -> Prediction:
        return Prediction(1 / self.heads, "exact", "two orthonormal points in the plane")
