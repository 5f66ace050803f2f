"""Tokens that outweigh all others: found by their length, named by text, coordinate and layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.linalg.scratch import Scratch
from rankfall.measures.views.spectra import host_float64, squared_lengths
from rankfall.models.thresholds import FAIR_SHARES, FEWEST_TOKENS, THRESHOLDS


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


@final
@dataclass(frozen=True)
class Standing:
    """Of every token (c, n): length over the median's, share of the energy, and whether that makes it a sink."""

    ratios: Float[Tensor, "c n"]
    shares: Float[Tensor, "c n"]
    chosen: Bool[Tensor, "c n"]


def standing(energies: Float[Tensor, "c n"], kept: Float[Tensor, "c n"]) -> Standing:
    """How tokens of these squared lengths stand among those that are kept (one, not zero)."""
    counts = kept.sum(dim=-1, keepdim=True)
    lengths = (energies * kept).sqrt()
    in_order = lengths.where(kept > 0, torch.inf).sort(dim=-1).values
    median = in_order.gather(1, ((counts - 1) / 2).to(torch.int64))
    ratios = lengths / median.clamp_min(torch.finfo(torch.float64).tiny)
    total = (energies * kept).sum(dim=-1, keepdim=True)
    shares = energies * kept / total.where(total > 0, 1.0)
    large = (shares > THRESHOLDS.sink_energy_share) & (shares * counts > FAIR_SHARES)
    longest = (ratios > THRESHOLDS.sink_norm_ratio) | large
    return Standing(ratios, shares, longest & (counts >= FEWEST_TOKENS) & (total > 0))


def find_sinks(
    tokens: Float[Tensor, "n d"], text: int, names: list[str], scratch: Scratch | None = None
) -> list[Sink]:
    """The sinks among the tokens, in order of position."""
    energies = torch.from_numpy(squared_lengths(host_float64(tokens, scratch)))
    found = standing(energies[None], torch.ones_like(energies)[None])
    sinks = []
    for position in found.chosen[0].nonzero()[:, 0].tolist():
        row = tokens[position].double().square()
        coordinate = int(row.argmax())
        sinks.append(
            Sink(
                text=text,
                position=position,
                token=names[position] if position < len(names) else "",
                norm_ratio=float(found.ratios[0, position]),
                energy_share=float(found.shares[0, position]),
                coordinate=coordinate,
                coordinate_share=float(row[coordinate] / energies[position]),
            )
        )
    return sinks
