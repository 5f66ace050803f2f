"""Explicit layers and tokens that stay as they are under LayerNorm (B-thm3), and what lies outside B-thm2."""

from rankfall.constructions.equilibria.antipodal import antipodal, antipodal_multipliers
from rankfall.constructions.equilibria.base import Construction, Family
from rankfall.constructions.equilibria.catalogue import (
    ALL_FAMILIES,
    build_equilibrium,
    choose_family,
    find_family,
)
from rankfall.constructions.equilibria.embed import equilibrium_under, under_layer_norm
from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.constructions.equilibria.ring import twisted, twisted_multipliers
from rankfall.constructions.equilibria.two_token import FixedPoint, TwoTokens

__all__ = [
    "ALL_FAMILIES",
    "Construction",
    "Family",
    "FixedPoint",
    "NormalisedLayer",
    "TwoTokens",
    "antipodal",
    "antipodal_multipliers",
    "build_equilibrium",
    "choose_family",
    "equilibrium_under",
    "find_family",
    "twisted",
    "twisted_multipliers",
    "under_layer_norm",
]
