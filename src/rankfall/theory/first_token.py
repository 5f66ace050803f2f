"""How much of every token comes from the first one after so many layers: products of attention on the mask's graph.

A token after t layers is a mean of the starting tokens with weights P_t = A_t ... A_1. Under uniform attention A is
given by the mask alone, and the column of the first token tells how much of it the others have become. With rotary
positions attention is not uniform but falls with the distance (`RotaryDecay`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np

from rankfall.errors import require, require_count, require_number
from rankfall.masks import Mask, MaskSchedule
from rankfall.theory.sub_stochastic import row_weights

LEAST_LOG_WEIGHT = -600.0
"""As which smaller logarithms of a weight count: e to that is still a number with all its digits."""


@final
@dataclass(frozen=True)
class RotaryDecay:
    """Expected scores of random queries and keys under rotary positions.

    q_i = sqrt(c) u + sqrt(1 - c) xi_i and k_j = sqrt(c) u + sqrt(1 - c) eta_j with u, xi_i, eta_j independent
    standard normal in r dimensions: every query has correlation c with every key in front of the rotation. Rotated by
    their positions and divided by sqrt(r), scores have the mean

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

    direct   mean weight that this layer alone puts on it, over tokens that see two keys or more
    carried  mean over tokens of its share in them by the product of all layers so far
    last     the same share in the last token
    """

    layer: int
    direct: float
    carried: float
    last: float


def position_attention(
    mask: Mask, n: int, sinks: float | Sequence[float] | None = None, rotary: RotaryDecay | None = None
) -> np.ndarray:
    """Attention (n, n) that positions alone give: uniform on the mask, or by the expected scores of rotary positions.

    With a sink rows sum to less than one; of several sinks, one for each head, it is the mean over heads.
    """
    allowed = mask.dense(n).cpu().numpy()
    weights = allowed.astype(float)
    if rotary is not None:
        scores = rotary.scores(np.arange(n))
        weights *= np.exp(scores)[np.abs(np.subtract.outer(np.arange(n), np.arange(n)))]
    total = weights.sum(axis=1)
    # Beside a sink so strong that nothing of it would be left in float64, all rows are alike and only shares count.
    factor = 1 / total if sinks is None else np.exp(np.maximum(row_weights(total, sinks), LEAST_LOG_WEIGHT))
    return factor[:, None] * weights


def step_masses(carried: np.ndarray, attention: np.ndarray, residual: float = 0.0) -> np.ndarray:
    """The first column of the product of attention and its row sums, (n, 2), one layer further."""
    following: np.ndarray = residual * carried + attention @ carried
    return following / following[:, 1].max()


def masses(layer: int, carried: np.ndarray, attention: np.ndarray, allowed: np.ndarray) -> FirstTokenMass:
    """What the first token holds by this layer's attention and by `step_masses` so far."""
    choosing = allowed.sum(axis=1) > 1
    direct = attention[choosing, 0] if choosing.any() else attention[:, 0]
    share = carried[:, 0] / carried[:, 1]
    return FirstTokenMass(layer, float(direct.mean()), float(share.mean()), float(share[-1]))


def start_masses(n: int) -> np.ndarray:
    """`step_masses` before the first layer."""
    return np.stack([np.eye(n)[0], np.ones(n)], axis=1)


def first_token_mass(
    masks: Mask | MaskSchedule,
    n: int,
    layers: int,
    *,
    sinks: float | Sequence[float] | None = None,
    rotary: RotaryDecay | None = None,
    residual: float = 0.0,
) -> list[FirstTokenMass]:
    """The first token's mass after 1, ..., `layers` layers of X' = residual X + A X.

    Shares are of what arrives: with a sink, or a residual connection, divided by the sum over all starting tokens.
    """
    schedule = MaskSchedule.of(masks)
    require_count("the number of tokens", n)
    require_count("the number of layers", layers)
    require_number("the residual", residual, least=0)
    period = [
        (position_attention(mask, n, sinks, rotary), mask.dense(n).cpu().numpy())
        for mask in (schedule.at(layer) for layer in range(schedule.period))
    ]
    carried, found = start_masses(n), []
    for layer in range(1, layers + 1):
        attention, allowed = period[(layer - 1) % schedule.period]
        carried = step_masses(carried, attention, residual)
        found.append(masses(layer, carried, attention, allowed))
    return found
