"""The share of the tokens' size that distinguishes them."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, ratio, share_range
from rankfall.measures.profile import Profile


def relative_mu(profile: Profile) -> Tensor:
    """mu(X) / ||X||_F."""
    return ratio(profile.spread, profile.energy.sqrt())


MEASURE = Measure(
    name="relative_mu",
    definition="mu over the Frobenius norm: 0 when all tokens are equal, 1 when their mean is zero",
    function=relative_mu,
    range=share_range,
    invariances=SHAPE_ONLY,
)
