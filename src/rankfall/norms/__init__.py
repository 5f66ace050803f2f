"""Norms, one file each, and where they stand in a block."""

from __future__ import annotations

from rankfall.catalogue import NORMS
from rankfall.norms.base import Norm, Scaling, divide_by_root
from rankfall.norms.dyt import DynamicTanh
from rankfall.norms.layer import LayerNorm
from rankfall.norms.layer_scaled import DepthScaledLayerNorm
from rankfall.norms.none import NoNorm
from rankfall.norms.placement import PLACEMENTS, Placement, place
from rankfall.norms.rms import RMSNorm
from rankfall.norms.unit import UnitNorm
from rankfall.registry import made

NO_NORM, UNIT_NORM = NoNorm(), UnitNorm()


def parse_norm(text: str) -> Norm:
    """The norm that an argument such as `unit` or `layer:1e-5` names."""
    return made(NORMS, text)


__all__ = [
    "NO_NORM",
    "PLACEMENTS",
    "UNIT_NORM",
    "DepthScaledLayerNorm",
    "DynamicTanh",
    "LayerNorm",
    "NoNorm",
    "Norm",
    "Placement",
    "RMSNorm",
    "Scaling",
    "UnitNorm",
    "divide_by_root",
    "parse_norm",
    "place",
]
