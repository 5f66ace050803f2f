"""The plane, A-thm2 in small: rank-1 hardmax heads at equal angles, and with turned keys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.base import Construction, Example, Layer, Network, Prediction
from rankfall.errors import require, require_count
from rankfall.mechanism.heads import Heads


def rank_one_layer(query: Float[Tensor, "h d"], key: Float[Tensor, "h d"], weight: Float[Tensor, " h"]) -> Network:
    """One layer of rank-1 hardmax heads with values weight_h * I."""
    d = query.shape[-1]
    eye = torch.eye(d, dtype=query.dtype)
    heads = Heads(query=query.unsqueeze(-1), key=key.unsqueeze(-1), value=weight.reshape(-1, 1, 1) * eye, scale=1.0)
    return Network((Layer(heads, "hardmax"),), dim=d, width=d, residual=False)


def unit_vectors(angle: Float[Tensor, " h"]) -> Float[Tensor, "h 2"]:
    """(cos, sin)."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def require_plane(construction: Construction) -> None:
    """Refuse any other dimension or number of points."""
    require(
        construction.dim == 2 and construction.points == 2,
        required="the plane and two points",
        got=f"d={construction.dim}, {construction.points} points",
        remedy="leave dim and points out",
    )


@final
@dataclass(frozen=True)
class EqualAngles(Construction):
    """H rank-1 hardmax heads q_h = k_h at angles pi h/H, all with the best common weight: bad, and exactly so.

    Of the H lines the number K that separate w from y is Hx rounded up or down, x = angle(w, y)/pi, with mean exactly
    Hx; so sum_h s_h = H - 2K has E[sgn * sum] = H/2 and E[sum^2] = (H^2 + 2)/3. With weight a for each,
    MSE = (1 - aH)^2/2 + (1 - aH + a^2 (H^2+2)/3)/2, least at a = 9H/(8H^2 + 4), where it is 1 - 27 H^2/(32 H^2 + 16):
    0.4375 for one head and never below 5/32. More heads of one alignment do not help.
    """

    name: ClassVar[str] = "equal-angles"
    statement: ClassVar[str] = "A-thm2"
    says: ClassVar[str] = "in the plane, heads with q = k stay above 5/32 however many there are"

    heads: int
    dim: int = 2
    points: int = 2

    def __post_init__(self) -> None:
        require_count("heads", self.heads)
        require_plane(self)

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [Example(cls(heads)) for heads in (1, 4, 7)]

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        h = self.heads
        direction = unit_vectors(math.pi * torch.arange(h, dtype=dtype) / h)
        weight = torch.full((h,), 9 * h / (8 * h**2 + 4), dtype=dtype)
        return rank_one_layer(direction, direction, weight)

    def predicted_error(self) -> Prediction:
        h = self.heads
        return Prediction(1 - 27 * h**2 / (32 * h**2 + 16), "exact", "two orthonormal points in the plane")


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

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [Example(cls(heads)) for heads in (2, 10, 32)]

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
