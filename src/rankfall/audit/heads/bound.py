"""Paper A's lower bound, for the width, rank and head count of a real layer."""

from __future__ import annotations

import importlib
from functools import cache


@cache
def head_bound(width: int, rank: int, heads: int) -> float | None:
    """The least mean squared error with which `heads` heads of this rank find the nearer of two orthonormal points.

    A real block adds its input to what attention gives, so the bound is the one with a skip connection. It speaks of
    the layer's shape alone: no layer of this shape can do better, whatever its weights. None when the room of
    theory has no such bound.
    """
    try:
        floor = importlib.import_module("rankfall.theory.head_floor")
        classes = importlib.import_module("rankfall.theory.head_class")
    except ModuleNotFoundError:
        return None
    return float(floor.mse_floor(classes.HeadClass(dim=width, rank=min(rank, width), skip=True), heads).mse)
