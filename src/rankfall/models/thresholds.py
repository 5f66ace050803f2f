"""Every number that separates good from bad in an audit, a monitor or their words. Conventions, not theorems."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final


@final
@dataclass(frozen=True)
class Thresholds:
    """Chosen so that models known to work are not called collapsed; verdicts state them.

    collapsed  the last layer's tokens differ by less than `collapsed_relative_mu` of their length, or span fewer
               than `collapsed_energy_rank` directions
    reduced    the energy rank falls below `reduced_share` of its highest, or the tokens differ by less than
               `reduced_relative_mu`, or their mean |cosine| exceeds `reduced_cosine`
    sink       a token longer than `sink_norm_ratio` times the median one, or with more than `sink_energy_share` of
               the energy and more than FAIR_SHARES times a fair share of it
    """

    collapsed_relative_mu: float = 0.1
    collapsed_energy_rank: float = 2.0
    reduced_share: float = 0.25
    reduced_relative_mu: float = 0.5
    reduced_cosine: float = 0.5
    sink_norm_ratio: float = 5.0
    sink_energy_share: float = 0.05


THRESHOLDS = Thresholds()

# A fair share of the energy of n tokens is 1/n.
FAIR_SHARES = 8.0
# Among fewer tokens than this none is called a sink.
FEWEST_TOKENS = 8
# Where the raw energy rank is below this share of the unit one, one long token decides the raw numbers.
MISLEADING = 0.7
# A head whose energy rank exceeds this share of its width uses what it has.
USED_SHARE = 0.5
# A variant of the block whose tokens differ by less than this has collapsed.
COLLAPSED_VARIANT = 0.01
