"""How much of everything one token holds: a sink shows here."""

from __future__ import annotations

from torch import Tensor

from rankfall.measures.base import SHAPE_ONLY, Measure, ratio, share_range
from rankfall.measures.profile import Profile


def largest_token_share(profile: Profile) -> Tensor:
    """max_i |x_i|^2 / ||X||_F^2."""
    return ratio(profile.token_energies.amax(dim=-1), profile.energy)


MEASURE = Measure(
    name="largest_token_share",
    definition="squared length of the longest token over the sum of all squared lengths",
    function=largest_token_share,
    range=share_range,
    invariances=SHAPE_ONLY,
)
