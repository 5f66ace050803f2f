"""Everything an audit asks about a batch of token matrices, computed on their device without a word to the host.

The host gets all numbers in one copy. Where squares of singular values are not exact enough, it takes it from there.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import final

import torch
from torch import Tensor

from rankfall.linalg.device.packing import Shapes, packed
from rankfall.linalg.device.recording import Recording
from rankfall.linalg.lapack import Vector
from rankfall.measures.catalogue import ALL_MEASURES
from rankfall.measures.views.batch import BatchProfile
from rankfall.measures.views.masked import masked_views
from rankfall.models.depth.sinks import standing

WHOLE_NUMBERS = ("counts", "absent", "structural_zeros")
OF_A_PROFILE = (*WHOLE_NUMBERS, "cosine_sums", "energies", "spread", "size", "singular")


def facts_of(tokens: Tensor, kept: Tensor) -> dict[str, Tensor]:
    """By name, of (c, n, d) tokens of which those count where kept (c, n) is one.

    Axes: measure, view (raw, unit, centred), sample c, then token n or singular value s. What a profile needs comes
    along, since the host has to go on where squares are not enough.
    """
    views = masked_views(tokens, kept)
    samples = tokens.shape[0]
    squares = (tokens.double() / views.size[:samples, None, None]).square()
    energies = views.token_energies[:samples]
    stands = standing(energies, kept)
    by_view = {
        "smallest_in_doubt": views.smallest_in_doubt,
        "others_in_doubt": views.others_in_doubt,
        "counts": views.count,
        "absent": views.absent,
        "structural_zeros": views.structural_zeros,
        "eigenvalues": views.eigenvalues,
        "cosine_sums": views.absolute_cosine_sum,
        "energies": views.token_energies,
        "spread": views.spread,
        "size": views.size,
        "singular": views.singular,
    }
    return {
        "values": torch.stack([one.of(views) for one in ALL_MEASURES]).reshape(len(ALL_MEASURES), 3, samples),
        **{name: torch.as_tensor(part).unflatten(0, (3, samples)) for name, part in by_view.items()},
        "is_sink": stands.chosen,
        "sink_ratio": stands.ratios,
        "sink_share": stands.shares,
        "sink_coordinate": squares.argmax(dim=-1),
        "sink_coordinate_share": squares.amax(dim=-1) / energies.where(energies > 0, 1.0),
    }


def profile_again(facts: Mapping[str, Vector], eigenvalues: Vector, width: int, epsilon: float) -> BatchProfile:
    """The profile of samples from their facts, each with a first axis for them, and from spectra that were mended."""
    given = {name: torch.from_numpy(facts[name]) for name in OF_A_PROFILE}
    given |= {name: given[name].to(torch.int64) for name in WHOLE_NUMBERS}
    given["singular"] = given["singular"] > 0
    return BatchProfile(eigenvalues=torch.from_numpy(eigenvalues), width=width, epsilon=epsilon, **given)


@final
class Station:
    """Room for `samples` token matrices (n, d), and the recorded computation of all facts about them."""

    def __init__(self, samples: int, n: int, d: int, dtype: torch.dtype, device: torch.device) -> None:
        self.tokens = torch.zeros(samples, n, d, dtype=dtype, device=device)
        self.kept = torch.ones(samples, n, dtype=torch.float64, device=device)
        self.shapes: Shapes = {}
        self._recording = Recording(self._compute, device)

    def run(self) -> Tensor:
        """All facts about what the room holds now, packed as `shapes` says."""
        return self._recording.run()

    def _compute(self) -> Tensor:
        facts = facts_of(self.tokens, self.kept)
        self.shapes = {name: tuple(part.shape) for name, part in facts.items()}
        return packed(facts)


@lru_cache(maxsize=10)
def station(samples: int, n: int, d: int, dtype: torch.dtype, device: torch.device, turn: int = 0) -> Station:
    """The station of that room. Companies that may be at work at the same time need different ones: `turn` tells them
    apart. Recording one takes tenths of a second, so all are kept that texts of one length need (rooms of 1 to 16 in
    two streams); those of other lengths take their place."""
    return Station(samples, n, d, dtype, device)
