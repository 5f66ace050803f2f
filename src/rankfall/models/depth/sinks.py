"""Tokens that outweigh all others: found by their length, named by text, coordinate and layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

# A sink is longer than this many times the median token ...
NORM_RATIO = 5.0
# ... or holds more than this share of the energy, and at least this many times a fair share (1/n each).
ENERGY_SHARE = 0.05
FAIR_SHARES = 8.0
# Among fewer tokens than this, none is called a sink.
FEWEST_TOKENS = 8


@final
@dataclass(frozen=True)
class Sink:
    """One sink at one place. `coordinate` is where most of it sits, `coordinate_share` how much of its energy."""

    text: int
    position: int
    token: str
    norm_ratio: float
    energy_share: float
    coordinate: int
    coordinate_share: float


def find_sinks(tokens: Float[Tensor, "n d"], text: int, names: list[str]) -> list[Sink]:
    """The sinks among the tokens, in order of position."""
    lengths = torch.linalg.vector_norm(tokens, dim=-1, dtype=torch.float64)
    energies = lengths.square()
    total = energies.sum()
    if len(tokens) < FEWEST_TOKENS or not total > 0:
        return []
    ratios = lengths / lengths.median().clamp_min(torch.finfo(torch.float64).tiny)
    shares = energies / total
    chosen = (ratios > NORM_RATIO) | ((shares > ENERGY_SHARE) & (shares * len(tokens) > FAIR_SHARES))
    sinks = []
    for position in chosen.nonzero()[:, 0].tolist():
        row = tokens[position].double().square()
        sinks.append(
            Sink(
                text=text,
                position=position,
                token=names[position] if position < len(names) else "",
                norm_ratio=float(ratios[position]),
                energy_share=float(shares[position]),
                coordinate=int(row.argmax()),
                coordinate_share=float(row.max() / row.sum()),
            )
        )
    return sinks
