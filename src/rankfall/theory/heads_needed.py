"""The bound turned round: how many heads an error requires."""

from __future__ import annotations

from collections.abc import Callable

from rankfall.errors import require
from rankfall.theory.harmonics import HIGHEST_DEGREE, require_degree
from rankfall.theory.head_class import HeadClass
from rankfall.theory.head_floor import DEFAULT_TOP, floor_value
from rankfall.theory.plateaus import plateau


def smallest_count(floor_at: Callable[[int], float], error: float) -> int:
    """The least H >= 1 with floor_at(H) <= error, for a decreasing floor; by doubling, then bisection on integers.

    Integers never overflow. Above 2^53 heads the floor itself distinguishes about thirteen digits of H.
    """
    if floor_at(1) <= error:
        return 1
    low, high = 1, 2
    while floor_at(high) > error:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if floor_at(middle) > error else (low, middle)
    return high


def heads_needed(heads_class: HeadClass, error: float, top: int | None = None) -> int:
    """No layer of the class reaches `error` with fewer heads than this: the least H with LB(d,r,H) <= error.

    Necessary, not sufficient. `error` must lie in (0, baseline], the baseline being what doing nothing reaches.
    Degrees above `top` (by default enough of them that the count no longer changes) enter as one term, which can only
    lower the count.
    """
    enough = degree_for(heads_class, error)
    top = enough if top is None else require_degree(top)
    return smallest_count(lambda heads: floor_value(heads_class, heads, top), error)


def degree_for(heads_class: HeadClass, error: float) -> int:
    """A highest degree at which the energy left out is at most half of what the error allows."""
    baseline = floor_value(heads_class, 0)
    require(
        0 < error <= baseline,
        required=f"an error in (0, {baseline:.6g}], the upper end being the error without any useful head",
        got=error,
        remedy="above it no head is needed, and nothing reaches zero",
    )
    top = DEFAULT_TOP
    while heads_class.points == 2 and plateau(heads_class.dim, top) > error / 4:
        require(
            top < HIGHEST_DEGREE,
            required=f"an error of at least {4 * plateau(heads_class.dim, HIGHEST_DEGREE):.3g} at this width",
            got=error,
            remedy=f"smaller ones need harmonics of degree above {HIGHEST_DEGREE}",
        )
        top = min(4 * top + 1, HIGHEST_DEGREE)
    return top
