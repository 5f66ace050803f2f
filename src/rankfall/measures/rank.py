"""Numerical rank."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, rank_range
from rankfall.measures.profile import Profile


def tolerance(profile: Profile) -> float | Tensor:
    """Singular values up to this share of the largest count as zero: max(n, d) times the given dtype's epsilon."""
    return profile.longer_side * profile.epsilon


def rank(profile: Profile) -> Tensor:
    """How many singular values exceed the tolerance times the largest. Needs the SVD when any is close."""
    return profile.count_above(tolerance(profile))


MEASURE = Measure(
    name="rank",
    definition="singular values above max(n, d) * epsilon of the tokens' dtype, relative to the largest",
    function=rank,
    range=rank_range,
    invariances=SHAPE_ONLY,
)
