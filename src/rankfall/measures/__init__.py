"""Measures of token rank: one file each, all from one decomposition per batch."""

from rankfall.measures.base import Measure
from rankfall.measures.catalogue import ALL_MEASURES, find, measure
from rankfall.measures.profile import Profile

__all__ = ["ALL_MEASURES", "Measure", "Profile", "find", "measure"]
