"""The thresholds of a verdict, all about tokens scaled to length one (the unit view)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

from rankfall.audit.depth.sinks import ENERGY_SHARE, NORM_RATIO


@final
@dataclass(frozen=True)
class Thresholds:
    """Conventions, not theorems: chosen so that models known to work are not called collapsed.

    collapsed  the last layer's tokens differ by less than `collapsed_relative_mu` of their length, or span fewer
               than `collapsed_effective_rank` directions
    reduced    the effective rank falls below `reduced_share` of its highest, or the tokens differ by less than
               `reduced_relative_mu`, or their mean |cosine| exceeds `reduced_cosine`
    """

    collapsed_relative_mu: float = 0.1
    collapsed_effective_rank: float = 2.0
    reduced_share: float = 0.25
    reduced_relative_mu: float = 0.5
    reduced_cosine: float = 0.5
    sink_norm_ratio: float = NORM_RATIO
    sink_energy_share: float = ENERGY_SHARE


THRESHOLDS = Thresholds()
