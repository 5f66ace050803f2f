"""Masks as directed graphs: each with its predicate, its band and its facts."""

from __future__ import annotations

from rankfall.masks.base import Band, Explicit, Mask, MaskFacts, check_allowed, graph_facts
from rankfall.masks.local import CausalWindow, Dilated, GlobalWindow, Ring, Window
from rankfall.masks.named import MaskSchedule, parse_mask, parse_schedule, recognise
from rankfall.masks.stars import InStar, OutStar, Star
from rankfall.masks.wide import BlockDiagonal, Causal, Complete, Prefix, RandomSparse

__all__ = [
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
    "recognise",
]
