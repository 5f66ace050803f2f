"""Equal budgets: the feed-forward's width, or the depth, that gives a model its parameters, operations or time."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rankfall.errors import RequestError, require, require_number, require_one_of
from rankfall.training.text.cell import MOST, TextCell
from rankfall.training.text.decoder import text_layout

SOLVED = ("feed_forward", "layers")
MULTIPLE = {"feed_forward": 16, "layers": 1}
"""Solved values are multiples of this: matrix units like the width to be one of sixteen."""

Cost = Callable[[TextCell], float]


def parameters(cell: TextCell) -> float:
    """Numbers that are trained, all of them."""
    return float(text_layout(cell).parameters)


def training_flops(cell: TextCell) -> float:
    """Operations of the whole run."""
    return cell.tokens_trained * cell.token_flops


def solved(cell: TextCell, name: str, cost: Cost, target: float, solve: str) -> TextCell:
    """The cell whose cost comes closest to the target, found by halving; cost must rise with what is solved for.

    An error where even the smallest or the largest value is on the wrong side of the target.
    """
    require_one_of("solve", solve, SOLVED)
    require_number(name, target, above=0)
    unit = MULTIPLE[solve]

    def at(count: int) -> TextCell:
        value: Any = {solve: count * unit}
        return dataclasses.replace(cell, **value)

    low, high = 1, 1
    least = cost(at(low))
    require(
        least <= target,
        required=f"a model of {name}={target:.4g} for rank={cell.rank}, heads={cell.heads}, value_rank="
        f"{cell.value_rank}",
        got=f"{least:.4g} with the smallest {solve}, {unit}",
        remedy="raise the budget, or lower heads, rank or width",
    )
    while cost(at(high)) < target:
        low, high = high, 2 * high
        if high * unit > MOST[solve]:
            raise RequestError(
                required=f"a {solve} of at most {MOST[solve]:,} for {name}={target:.4g}",
                got="more",
                remedy="lower the budget, or raise the width",
            )
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if cost(at(middle)) < target else (low, middle)
    nearest = min((low, high), key=lambda count: abs(cost(at(count)) - target))
    return dataclasses.replace(at(nearest), budget=f"{name}={target:.6g} by {solve}")
