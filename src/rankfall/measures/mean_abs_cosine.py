"""How aligned the tokens are, pair by pair."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, share_range
from rankfall.measures.profile import Profile


def mean_abs_cosine(profile: Profile) -> Tensor:
    """Mean of |<x_i, x_j>| / (|x_i| |x_j|) over i != j; 1 for a single token, 0 with a zero token."""
    pairs = profile.count * (profile.count - 1)
    if pairs == 0:
        return torch.ones_like(profile.energy)
    return (profile.absolute_cosine_sum / pairs).clamp(0, 1)


MEASURE = Measure(
    name="mean_abs_cosine",
    definition="mean absolute cosine over pairs of distinct tokens",
    function=mean_abs_cosine,
    range=share_range,
    invariances=SHAPE_ONLY,
)
