"""Paper A's lower bound, for the width, rank and head count of a real layer."""

from __future__ import annotations

from functools import cache

from rankfall.theory.head_class import HeadClass
from rankfall.theory.head_floor import mse_floor


@cache
def head_bound(width: int, rank: int, heads: int) -> float:
    """The least mean squared error with which `heads` heads of this rank find the nearer of two orthonormal points.

    A real block adds its input to what attention gives, so the bound is the one with a skip connection. It speaks of
    the layer's shape alone: no layer of this shape can do better, whatever its weights.
    """
    return mse_floor(HeadClass(dim=width, rank=min(rank, width), skip=True), heads).mse
