"""How much of every token comes from the first one after so many layers: products of attention on the mask's graph.

A token after t layers is a mean of the starting tokens with weights P_t = A_t ... A_1. Under uniform attention A is
given by the mask alone, and the column of the first token tells how much of it the others have become. With rotary
positions attention is not uniform but falls with the distance (`RotaryDecay`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import numpy as np

from rankfall.errors import require, require_count, require_number
from rankfall.masks import Mask, MaskSchedule


@final
@dataclass(frozen=True)
class RotaryDecay:
    """Expected scores of random queries and keys under rotary positions.

    q_i = sqrt(c) u + sqrt(1 - c) xi_i and k_j = sqrt(c) u + sqrt(1 - c) eta_j with u, xi_i, eta_j independent standard
    normal in r dimensions: every query has correlation c with every key in front of the rotation. Rotated by their
    positions and divided by sqrt(r), scores have the mean

        c sqrt(r) g(i - j),   g(D) = (2 / r) sum over p < r/2 of cos(D base^(-2p/r)),

    which falls from c sqrt(r) as the distance grows. Correlation 0 is uniform attention, 1 the strongest decay.
    """

    base: float = 10_000.0
    rank: int = 64
    correlation: float = 1.0

    def __post_init__(self) -> None:
        require_number("the rotary base", self.base, above=1)
        require_count("the rank", self.rank, least=2)
        require(
            self.rank % 2 == 0, required="an even rank, whose halves rotate", got=self.rank, remedy="64, for example"
        )
        require_number("the correlation", self.correlation, least=0, most=1)

    def scores(self, distances: np.ndarray) -> np.ndarray:
        """The expected score at each distance, of any shape."""
        frequencies = self.base ** (-2 * np.arange(self.rank // 2) / self.rank)
        found: np.ndarray = np.cos(np.asarray(distances, dtype=float)[..., None] * frequencies).mean(axis=-1)
        return self.correlation * math.sqrt(self.rank) * found


@final
@dataclass(frozen=True)
class FirstTokenMass:
    """What the first token holds after `layer` layers, between 0 and 1.

    direct   mean over tokens of the weight that this layer alone puts on it, the own weight of the first included
    carried  mean over tokens of its share in them by the product of all layers so far
    last     the same share in the last token
    """

    layer: int
    direct: float
    carried: float
    last: float


def position_attention(mask: Mask, n: int, sink: float | None = None, rotary: RotaryDecay | None = None) -> np.ndarray:
    """Attention (n, n) that positions alone give: uniform on the mask, or by the expected scores of rotary positions.

    With a sink rows sum to less than one.
    """
    allowed = mask.dense(n).cpu().numpy()
    scores = np.zeros((n, n)) if rotary is None else rotary.scores(np.subtract.outer(np.arange(n), np.arange(n)))
    scores = np.where(allowed, scores, -math.inf)
    top = scores.max(axis=1, keepdims=True)
    weights = np.exp(scores - top)
    taken = 0.0 if sink is None else np.exp(sink - top)
    attention: np.ndarray = weights / (weights.sum(axis=1, keepdims=True) + taken)
    return attention


def first_token_mass(
    masks: Mask | MaskSchedule,
    n: int,
    layers: int,
    *,
    sink: float | None = None,
    rotary: RotaryDecay | None = None,
    residual: float = 0.0,
) -> list[FirstTokenMass]:
    """The first token's mass after 1, ..., `layers` layers of X' = residual X + A X.

    Shares are of what arrives: with a sink, or a residual connection, divided by the sum over all starting tokens.
    """
    schedule = masks if isinstance(masks, MaskSchedule) else MaskSchedule((masks,))
    require_count("the number of tokens", n)
    require_count("the number of layers", layers)
    require_number("the residual", residual, least=0)
    period = [position_attention(schedule.at(layer), n, sink, rotary) for layer in range(schedule.period)]
    # Only the first column of the product and its row sums are needed.
    carried = np.stack([np.eye(n)[0], np.ones(n)], axis=1)
    found = []
    for layer in range(1, layers + 1):
        attention = period[(layer - 1) % schedule.period]
        carried = residual * carried + attention @ carried
        carried /= carried[:, 1].max()
        share = carried[:, 0] / carried[:, 1]
        found.append(FirstTokenMass(layer, float(attention[:, 0].mean()), float(share.mean()), float(share[-1])))
    return found
