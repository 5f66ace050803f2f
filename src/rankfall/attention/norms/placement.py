"""Where a norm stands in a residual block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from rankfall.attention.norms.base import Norm
from rankfall.shapes import Tokens

Placement = Literal["post", "pre"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


def place(
    norm: Callable[[Tokens], Tokens] | Norm,
    layer: Callable[[Tokens], Tokens],
    tokens: Tokens,
    placement: Placement = "post",
    residual: float = 1.0,
) -> Tokens:
    """One block: post is norm(residual x + layer(x)), pre is residual x + layer(norm(x))."""
    if placement == "post":
        return norm(residual * tokens + layer(tokens))
    return residual * tokens + layer(norm(tokens))
