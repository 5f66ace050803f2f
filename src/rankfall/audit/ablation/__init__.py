"""Which part of a block holds the token rank up: attention alone, with the norm, with the residual, with both."""

from rankfall.audit.ablation.ablate import Ablation, ablate
from rankfall.audit.ablation.blocks import Block, BlockKind, recognise
from rankfall.audit.ablation.variants import ALL_VARIANTS, SCALINGS, Scaling, Variant
from rankfall.audit.ablation.whole import whole_under

__all__ = [
    "ALL_VARIANTS",
    "SCALINGS",
    "Ablation",
    "Block",
    "BlockKind",
    "Scaling",
    "Variant",
    "ablate",
    "recognise",
    "whole_under",
]
