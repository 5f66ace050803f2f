"""Explicit weights that realise a theorem of paper A, each naming the statement and the error that it must have."""

from rankfall.constructions.base import Construction, Points, Prediction
from rankfall.constructions.catalogue import ALL_CONSTRUCTIONS
from rankfall.constructions.equal_angles import EqualAngles
from rankfall.constructions.full_rank_head import FullRankHead
from rankfall.constructions.linear_regime import LinearRegime
from rankfall.constructions.majority_vote import MajorityVote
from rankfall.constructions.network import Layer, Network
from rankfall.constructions.oscillating_sum import OscillatingSum
from rankfall.constructions.plurality_vote import PluralityVote
from rankfall.constructions.quantised_query import QuantisedQuery
from rankfall.constructions.simulation import Estimate, simulate

__all__ = [
    "ALL_CONSTRUCTIONS",
    "Construction",
    "EqualAngles",
    "Estimate",
    "FullRankHead",
    "Layer",
    "LinearRegime",
    "MajorityVote",
    "Network",
    "OscillatingSum",
    "PluralityVote",
    "Points",
    "Prediction",
    "QuantisedQuery",
    "simulate",
]
