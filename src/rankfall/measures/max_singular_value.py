"""The strongest direction."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SIZE_TOO, Measure, size_range
from rankfall.measures.profile import Profile


def max_singular_value(profile: Profile) -> Tensor:
    """The spectral norm."""
    return profile.largest_eigenvalue.sqrt()


MEASURE = Measure(
    name="max_singular_value",
    definition="largest singular value",
    function=max_singular_value,
    range=size_range,
    invariances=SIZE_TOO,
    degree=1,
)
