"""Compare: one file per figure or table of the papers, published values beside ours, and a verdict."""

from rankfall.reproduce.base import Claim, Outcome, Reproduction, Scale
from rankfall.reproduce.catalogue import ALL_REPRODUCTIONS, find

__all__ = ["ALL_REPRODUCTIONS", "Claim", "Outcome", "Reproduction", "Scale", "find"]
