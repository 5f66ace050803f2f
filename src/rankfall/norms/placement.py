"""Where a norm stands in a residual block."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from rankfall.shapes import Tokens

Placement = Literal["post", "pre", "peri"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


def place(
    norm: Callable[[Tokens], Tokens],
    layer: Callable[[Tokens], Tokens],
    tokens: Tokens,
    placement: Placement = "post",
    residual: float = 1.0,
) -> Tokens:
    """One block.

    post: norm(residual x + layer(x)); pre: residual x + layer(norm(x)); peri: residual x + norm(layer(norm(x))), the
    norm on both sides of the branch, whatever norm it is.
    """
    if placement == "post":
        return norm(residual * tokens + layer(tokens))
    branch = layer(norm(tokens))
    return residual * tokens + (norm(branch) if placement == "peri" else branch)
