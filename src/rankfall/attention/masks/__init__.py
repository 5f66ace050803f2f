"""Masks as directed graphs: one file per pattern, each with its predicate, its band and its facts."""

from rankfall.attention.masks.base import Band, Mask, MaskFacts
from rankfall.attention.masks.block_diagonal import BlockDiagonal
from rankfall.attention.masks.catalogue import ALL_MASKS, parse_mask, parse_schedule, spelling
from rankfall.attention.masks.causal import Causal
from rankfall.attention.masks.causal_window import CausalWindow
from rankfall.attention.masks.complete import Complete
from rankfall.attention.masks.dilated import Dilated
from rankfall.attention.masks.explicit import Explicit, check_allowed
from rankfall.attention.masks.global_window import GlobalWindow
from rankfall.attention.masks.graph import graph_facts
from rankfall.attention.masks.in_star import InStar
from rankfall.attention.masks.out_star import OutStar
from rankfall.attention.masks.prefix import Prefix
from rankfall.attention.masks.random_sparse import RandomSparse
from rankfall.attention.masks.ring import Ring
from rankfall.attention.masks.schedule import MaskSchedule
from rankfall.attention.masks.star import Star
from rankfall.attention.masks.window import Window

__all__ = [
    "ALL_MASKS",
    "Band",
    "BlockDiagonal",
    "Causal",
    "CausalWindow",
    "Complete",
    "Dilated",
    "Explicit",
    "GlobalWindow",
    "InStar",
    "Mask",
    "MaskFacts",
    "MaskSchedule",
    "OutStar",
    "Prefix",
    "RandomSparse",
    "Ring",
    "Star",
    "Window",
    "check_allowed",
    "graph_facts",
    "parse_mask",
    "parse_schedule",
    "spelling",
]
