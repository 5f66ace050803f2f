"""Families star (any rank, well conditioned) and diagonal (any rank, none stable)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.families import Equilibrium, EquilibriumFamily
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import RequestError
from rankfall.masks import Causal, OutStar

DELTA = 0.2
HEIGHT = -0.3
"""x_d of every token but the first: the multiplier across is 1.2 * 0.7 = 0.84, that of token 1 is 1 / 1.2."""


WEIGHT = (1 + DELTA + HEIGHT * DELTA) / math.sqrt(1 - HEIGHT**2)
"""w such that -s e_j + t e_d with t = HEIGHT and s = sqrt(1 - t^2) is fixed: s w = 1 + delta + t delta."""


def star_value(width: int, weight: float, delta: float) -> torch.Tensor:
    """W_V = I + u^T e_d with u = (w, ..., w, delta)."""
    value = torch.eye(width, dtype=torch.float64)
    value[:-1, -1] = weight
    value[-1, -1] = 1 + delta
    return value


@final
class StarFamily(EquilibriumFamily):
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

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Equilibrium:
        tokens = torch.zeros(count, width, dtype=torch.float64)
        for i in range(count):
            place = i % rank
            if place == 0:
                tokens[i, -1] = 1.0
            else:
                tokens[i, place - 1] = -math.sqrt(1 - HEIGHT**2)
                tokens[i, -1] = HEIGHT
        layer = NormalisedLayer(star_value(width, WEIGHT, DELTA), OutStar().dense(count))
        parameters = {"w": WEIGHT, "delta": DELTA, "ratio": 1.0, "height": HEIGHT}
        return Equilibrium(self.name, rank, layer, tokens, parameters)


def settled(neighbours: Float[Tensor, d], eigenvalues: Float[Tensor, d]) -> Float[Tensor, d]:
    """The unit vector x = s W (g - W)^-1 for W = diag(eigenvalues), which rise, and the largest g above them."""
    pushed = neighbours * eigenvalues

    def answer(gap: float) -> Tensor:
        return pushed / (eigenvalues[-1] + gap - eigenvalues)

    gap = largest_gap(lambda gap: float(torch.linalg.vector_norm(answer(gap))), float(eigenvalues[-1]))
    x = answer(gap)
    return x / torch.linalg.vector_norm(x)


def largest_gap(length: Callable[[float], float], scale: float) -> float:
    """The largest gap at which the length is one, to the last digit: walk down, then halve."""
    high = scale
    while length(high) > 1:
        high *= 2
    low = high * SHRINK
    while length(low) <= 1:
        high, low = low, low * SHRINK
        if low < 1e-12 * scale:
            raise RequestError(
                required="neighbours that reach the leading direction of the value matrix",
                got="a token whose length stays below one for every growth factor",
                remedy="give the earlier tokens a part along the leading eigenvector",
            )
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if length(middle) > 1:
            low = middle
        else:
            high = middle
    return high


RATIO = 3.0

# Steps by which the largest gap is looked for from above.
SHRINK = 0.7

# Beyond this width the eigenvalues span more than float64 resolves: 3^40 is 1e19.
WIDEST = 32


@final
class DiagonalFamily(EquilibriumFamily):
    """Normal value matrix: equilibria of every rank coexist, and all are unstable."""

    name: ClassVar[str] = "diagonal"
    meaning: ClassVar[str] = "uniform causal attention, value matrix diag(1, 3, 9, ...)"
    mask: ClassVar[str] = "causal"
    stability: ClassVar[str] = "unstable for every width above 1: spectral radius 3^(d-1)"

    def limit(self, count: int, width: int) -> int:
        return min(count, width, WIDEST) if width <= WIDEST else 0

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Equilibrium:
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
                tokens[i, :rank] = settled(total[:rank], eigenvalues[:rank])
        layer = NormalisedLayer(torch.diag(eigenvalues), Causal().dense(count))
        return Equilibrium(self.name, rank, layer, tokens, {"ratio": RATIO})
