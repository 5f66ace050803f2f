"""The weakest direction."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SIZE_TOO, Measure, size_range
from rankfall.measures.profile import Profile


def min_singular_value(profile: Profile) -> Tensor:
    """The smallest of the min(n, d) singular values. Needs the SVD when it is near zero."""
    return profile.smallest_singular_value


MEASURE = Measure(
    name="min_singular_value",
    definition="smallest of the min(n, d) singular values",
    function=min_singular_value,
    range=size_range,
    invariances=SIZE_TOO,
    degree=1,
)
