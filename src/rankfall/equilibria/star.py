"""Families star (any rank, well conditioned) and diagonal (any rank, none stable)."""

from __future__ import annotations

import math
from typing import ClassVar, final

import torch

from rankfall.equilibria.base import Construction, Family, NormalisedLayer, settled
from rankfall.masks import Causal, OutStar

DELTA = 0.2
HEIGHT = -0.3
"""x_d of every token but the first: the multiplier across is 1.2 * 0.7 = 0.84, that of token 1 is 1 / 1.2."""


def star_weight(delta: float = DELTA, height: float = HEIGHT, ratio: float = 1.0) -> float:
    """w such that -s e_j + t e_d with t = height and s = sqrt(1 - t^2) is fixed: s w = c (1 + delta) + t delta."""
    return (ratio * (1 + delta) + height * delta) / math.sqrt(1 - height**2)


def star_value(width: int, weight: float, delta: float) -> torch.Tensor:
    """W_V = I + u^T e_d with u = (w, ..., w, delta)."""
    value = torch.eye(width, dtype=torch.float64)
    value[:-1, -1] = weight
    value[-1, -1] = 1 + delta
    return value


@final
class Star(Family):
    """Every rank up to min(N, d), one value matrix for all; neutral along a sphere, attracting across it."""

    name: ClassVar[str] = "star"
    meaning: ClassVar[str] = "tokens on the sphere of fixed points of an out-star; best conditioned, any rank"
    mask: ClassVar[str] = "out-star"
    stability: ClassVar[str] = (
        "rank 1 and width 2 strictly stable; else marginal: the d - 2 neutral directions of each token lie along a "
        "sphere of fixed points, which attracts from all other directions"
    )

    def limit(self, count: int, width: int) -> int:
        return min(count, width)

    def strict(self, count: int, width: int, rank: int) -> bool:
        return rank == 1 or width == 2

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        weight = star_weight()
        tokens = torch.zeros(count, width, dtype=torch.float64)
        for i in range(count):
            place = i % rank
            if place == 0:
                tokens[i, -1] = 1.0
            else:
                tokens[i, place - 1] = -math.sqrt(1 - HEIGHT**2)
                tokens[i, -1] = HEIGHT
        layer = NormalisedLayer(star_value(width, weight, DELTA), OutStar().dense(count))
        parameters = {"w": weight, "delta": DELTA, "ratio": 1.0, "height": HEIGHT}
        return Construction(self.name, rank, layer, tokens, parameters)


RATIO = 3.0

# Beyond this width the eigenvalues span more than float64 resolves: 3^40 is 1e19.
WIDEST = 32


@final
class Diagonal(Family):
    """Normal value matrix: equilibria of every rank coexist, and all are unstable."""

    name: ClassVar[str] = "diagonal"
    meaning: ClassVar[str] = "uniform causal attention, value matrix diag(1, 3, 9, ...)"
    mask: ClassVar[str] = "causal"
    stability: ClassVar[str] = "unstable for every width above 1: spectral radius 3^(d-1)"

    def limit(self, count: int, width: int) -> int:
        return min(count, width, WIDEST) if width <= WIDEST else 0

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        eigenvalues = RATIO ** torch.arange(width, dtype=torch.float64)
        tokens = torch.zeros(count, width, dtype=torch.float64)
        tokens[0, 0] = 1.0
        for i in range(1, count):
            total = tokens[:i].sum(dim=0)
            if i < rank:
                own = eigenvalues[i]
                tokens[i, :i] = eigenvalues[:i] * total[:i] / (own - eigenvalues[:i])
                tokens[i, i] = (1 - tokens[i, :i].square().sum()).sqrt()
            else:
                inner = torch.diag(eigenvalues[:rank])
                tokens[i, :rank] = settled(total[:rank], inner, float(eigenvalues[rank - 1]))
        layer = NormalisedLayer(torch.diag(eigenvalues), Causal().dense(count))
        return Construction(self.name, rank, layer, tokens, {"ratio": RATIO})
