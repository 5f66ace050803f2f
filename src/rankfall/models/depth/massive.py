"""Massive tokens, which outweigh all others: found by their length, named by text, coordinate and layers.

Where attention rests is another question: `models/attention`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.models.thresholds import FAIR_SHARES, FEWEST_TOKENS, THRESHOLDS


@final
@dataclass(frozen=True)
class MassiveToken:
    """One massive token at one place. `coordinate` is where most of it sits, `coordinate_share` how much of it."""

    text: int
    position: int
    token: str
    norm_ratio: float
    energy_share: float
    coordinate: int
    coordinate_share: float


def find_massive(tokens: Float[Tensor, "n d"], text: int, names: list[str]) -> list[MassiveToken]:
    """The massive tokens among these, in order of position."""
    lengths = torch.linalg.vector_norm(tokens, dim=-1, dtype=torch.float64)
    energies = lengths.square()
    total = energies.sum()
    if len(tokens) < FEWEST_TOKENS or not total > 0:
        return []
    ratios = lengths / lengths.median().clamp_min(torch.finfo(torch.float64).tiny)
    shares = energies / total
    chosen = (ratios > THRESHOLDS.massive_norm_ratio) | (
        (shares > THRESHOLDS.massive_energy_share) & (shares * len(tokens) > FAIR_SHARES)
    )
    found = []
    for position in chosen.nonzero()[:, 0].tolist():
        row = tokens[position].double().square()
        found.append(
            MassiveToken(
                text=text,
                position=position,
                token=names[position] if position < len(names) else "",
                norm_ratio=float(ratios[position]),
                energy_share=float(shares[position]),
                coordinate=int(row.argmax()),
                coordinate_share=float(row.max() / row.sum()),
            )
        )
    return found
