"""Effective rank: how many directions carry the energy."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, rank_range
from rankfall.measures.profile import Profile


def effective_rank(profile: Profile) -> Tensor:
    """exp(-sum p log p) with p the squared singular values over their sum."""
    return profile.entropy.exp() * (profile.eigenvalue_sum > 0)


MEASURE = Measure(
    name="effective_rank",
    definition="exponential of the entropy of the normalised squared singular values",
    function=effective_rank,
    range=rank_range,
    invariances=SHAPE_ONLY,
)
