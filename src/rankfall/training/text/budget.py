"""Equal budgets: the feed-forward's width, or the depth, that gives a model its parameters, operations or time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from rankfall.errors import require, require_number, require_one_of
from rankfall.training.text.cell import MOST, TextCell
from rankfall.training.text.decoder import text_layout

SOLVED = ("feed_forward", "layers")
MULTIPLE = {"feed_forward": 16, "layers": 1}
"""Solved values are multiples of this: matrix units like the width to be one of sixteen."""

FARTHEST = 8
"""Most by which a guess goes beyond the largest value known: a line through two times that are nearly equal, which
noise makes of small models, leads to models of any size."""

Cost = Callable[[TextCell], float]


def parameters(cell: TextCell) -> float:
    """Numbers that are trained, all of them."""
    return float(text_layout(cell).parameters)


def training_flops(cell: TextCell) -> float:
    """Operations of the whole run."""
    return cell.tokens_trained * cell.token_flops


def budget_note(name: str, target: float, solve: str) -> str:
    """What a solved cell says of its budget."""
    return f"{name}={target:.6g} by {solve}"


def solved(cell: TextCell, name: str, cost: Cost, target: float, solve: str, close: float = 0.0) -> TextCell:
    """The cell whose cost comes closest to the target; cost must rise with what is solved for.

    Costs are straight lines, or nearly, so that each guess lies on the line between two known values; a cost that is
    measured is taken when it is `close`, as a share of the target, since each guess takes its time. An error where
    even the smallest or the largest value is on the wrong side of the target.
    """
    require_one_of("solve", solve, SOLVED)
    require_number(name, target, above=0)
    unit = MULTIPLE[solve]
    known: dict[int, float] = {}

    def at(count: int) -> TextCell:
        value: Any = {solve: count * unit}
        return dataclasses.replace(cell, **value)

    def cost_at(count: int) -> float:
        if count not in known:
            known[count] = cost(at(count))
        return known[count]

    def is_found() -> bool:
        return any(abs(value - target) <= close * target for value in known.values())

    def on_the_line() -> float:
        """Where the line through both ends meets the target; infinite where it does not rise."""
        rise = cost_at(high) - cost_at(low)
        return low + (high - low) * (target - cost_at(low)) / rise if rise > 0 else math.inf

    largest = MOST[solve] // unit
    low, high = 1, min(max(2, getattr(cell, solve) // unit), largest)
    require(
        cost_at(low) <= target,
        required=f"a model of {name}={target:.4g} for rank={cell.rank}, heads={cell.heads}, value_rank="
        f"{cell.value_rank}",
        got=f"{cost_at(low):.4g} with the smallest {solve}, {unit}",
        remedy="raise the budget, or lower heads, rank or width",
    )
    while cost_at(high) < target and not is_found():
        require(
            high < largest,
            required=f"a {solve} of at most {MOST[solve]:,} for {name}={target:.4g}",
            got="more",
            remedy="lower the budget, or raise the width",
        )
        beyond = math.ceil(min(on_the_line(), FARTHEST * high)) if len(known) == 2 else 2 * high
        low, high = high, min(max(beyond, high + 1), largest)
    while high - low > 1 and not is_found():
        # every third guess halves: on a curve the line alone would come closer from one side only
        line = on_the_line() if len(known) % 3 != 1 else (low + high) / 2
        middle = min(max(round(min(line, high)), low + 1), high - 1)
        low, high = (middle, high) if cost_at(middle) < target else (low, middle)
    nearest = min(known, key=lambda count: abs(known[count] - target))
    return dataclasses.replace(at(nearest), budget=budget_note(name, target, solve))
