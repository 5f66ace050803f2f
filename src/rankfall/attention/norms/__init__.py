"""Norms: one file each, applied to every token on its own; post or pre placement."""

from rankfall.attention.norms.base import Norm
from rankfall.attention.norms.catalogue import ALL_NORMS, parse_norm
from rankfall.attention.norms.layer import LayerNorm
from rankfall.attention.norms.none import NoNorm
from rankfall.attention.norms.placement import PLACEMENTS, Placement, place
from rankfall.attention.norms.rms import RMSNorm
from rankfall.attention.norms.unit import UnitNorm

__all__ = [
    "ALL_NORMS",
    "PLACEMENTS",
    "LayerNorm",
    "NoNorm",
    "Norm",
    "Placement",
    "RMSNorm",
    "UnitNorm",
    "parse_norm",
    "place",
]
