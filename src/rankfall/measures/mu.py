"""Distance from all tokens being equal (B-mu)."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import Measure, size_range
from rankfall.measures.profile import Profile


def mu(profile: Profile) -> Tensor:
    """||X - 1 1^T X / N||_F."""
    return profile.spread


MEASURE = Measure(
    name="mu",
    definition="Frobenius norm of the tokens after their mean token is taken off: 0 when all are equal",
    function=mu,
    range=size_range,
    invariances=frozenset({"permutation", "rotation", "translation"}),
    degree=1,
)
