"""Every construction there is, one line each."""

from __future__ import annotations

from rankfall.constructions.base import Construction
from rankfall.constructions.equal_angles import EqualAngles
from rankfall.constructions.full_rank_head import FullRankHead
from rankfall.constructions.linear_regime import LinearRegime
from rankfall.constructions.majority_vote import MajorityVote
from rankfall.constructions.oscillating_sum import OscillatingSum
from rankfall.constructions.plurality_vote import PluralityVote
from rankfall.constructions.quantised_query import QuantisedQuery

ALL_CONSTRUCTIONS: tuple[type[Construction], ...] = (
    FullRankHead,
    MajorityVote,
    LinearRegime,
    OscillatingSum,
    PluralityVote,
    EqualAngles,
    QuantisedQuery,
)
