"""What the best rank-one matrix leaves."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SIZE_TOO, Measure, size_range
from rankfall.measures.profile import Profile


def rank_one_residual(profile: Profile) -> Tensor:
    """sqrt(s_2^2 + s_3^2 + ...): Frobenius distance to the nearest matrix of rank one. Needs the SVD near zero."""
    return profile.energy_but_first.sqrt()


MEASURE = Measure(
    name="rank_one_residual",
    definition="Frobenius distance to the nearest matrix of rank one",
    function=rank_one_residual,
    range=size_range,
    invariances=SIZE_TOO,
    degree=1,
)
