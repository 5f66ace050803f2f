"""Stable rank: energy in units of the strongest direction."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, rank_range, ratio
from rankfall.measures.profile import Profile


def stable_rank(profile: Profile) -> Tensor:
    """||X||_F^2 / ||X||_2^2."""
    return ratio(profile.eigenvalue_sum, profile.largest_eigenvalue)


MEASURE = Measure(
    name="stable_rank",
    definition="squared Frobenius norm over the squared largest singular value",
    function=stable_rank,
    range=rank_range,
    invariances=SHAPE_ONLY,
)
