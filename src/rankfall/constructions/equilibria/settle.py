"""A token that does not resonate: the fixed point of x -> (s + x) W / g with g above the spectrum of W.

A token with neighbours s (weights relative to its own) is fixed iff g x = (s + x) W with g > 0. When g is not an
eigenvalue, x = s W (g - W)^-1, and the length decides g. We take the largest such g, where the pull of the
neighbours counts most against the token's own growth.
"""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.errors import RequestError

SHRINK = 0.7


def settled(neighbours: Float[Tensor, d], value: Float[Tensor, "d d"], spectrum: float) -> Float[Tensor, d]:
    """The unit vector x = s W (g - W)^-1 for the largest g > spectrum, the largest eigenvalue of W."""
    pushed = neighbours @ value
    eye = torch.eye(value.shape[0], dtype=value.dtype)

    def answer(gap: float) -> Tensor:
        return torch.linalg.solve(((spectrum + gap) * eye - value).mT, pushed)

    gap = largest_gap(lambda gap: float(torch.linalg.vector_norm(answer(gap))), spectrum)
    x = answer(gap)
    return x / torch.linalg.vector_norm(x)


def largest_gap(length: Callable[[float], float], scale: float) -> float:
    """The largest gap at which the length is one, to the last digit: walk down, then halve."""
    high = scale
    while length(high) > 1:
        high *= 2
    low = high * SHRINK
    while length(low) <= 1:
        high, low = low, low * SHRINK
        if low < 1e-12 * scale:
            raise RequestError(
                required="neighbours that reach the leading direction of the value matrix",
                got="a token whose length stays below one for every growth factor",
                remedy="give the earlier tokens a part along the leading eigenvector",
            )
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if length(middle) > 1:
            low = middle
        else:
            high = middle
    return high


def largest_gap_decimal(squared_length: Callable[[Decimal], Decimal]) -> Decimal:
    """The same in the digits of the current decimal context: bisection, then Newton's secant to the last digit."""
    high = Decimal(1)
    while squared_length(high) > 1:
        high *= 2
    low = high * Decimal("0.7")
    while squared_length(low) <= 1:
        high, low = low, low * Decimal("0.7")
    for _ in range(40):
        middle = (low + high) / 2
        if squared_length(middle) > 1:
            low = middle
        else:
            high = middle
    f_low, f_high = squared_length(low) - 1, squared_length(high) - 1
    for _ in range(20):
        if f_high == f_low or low == high:
            break
        low, f_low, high = high, f_high, high - f_high * (high - low) / (f_high - f_low)
        f_high = squared_length(high) - 1
    return high
