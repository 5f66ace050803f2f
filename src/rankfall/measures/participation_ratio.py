"""Participation ratio: another count of directions, weighing strong ones more."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, rank_range, ratio
from rankfall.measures.profile import Profile


def participation_ratio(profile: Profile) -> Tensor:
    """(sum s^2)^2 / sum s^4."""
    return ratio((profile.eigenvalue_sum > 0).double(), profile.concentration)


MEASURE = Measure(
    name="participation_ratio",
    definition="squared sum of the squared singular values over the sum of their squares",
    function=participation_ratio,
    range=rank_range,
    invariances=SHAPE_ONLY,
)
