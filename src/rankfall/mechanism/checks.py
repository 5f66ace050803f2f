"""Checks of what comes in, each with a remedy."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfall.errors import RequestError, require


def check_tokens(tokens: Tensor, name: str = "tokens") -> None:
    """Refuse what is not a floating-point (..., n, d) with at least one token and one coordinate."""
    require(
        tokens.is_floating_point(),
        required=f"{name} of a floating-point dtype",
        got=f"dtype {tokens.dtype}",
        remedy="convert them, for example with `.float()`",
    )
    require(
        tokens.ndim >= 2,
        required=f"{name} of shape (..., n, d)",
        got=f"shape {tuple(tokens.shape)}",
        remedy="one token per row, batch axes in front",
    )
    require(
        tokens.shape[-2] > 0 and tokens.shape[-1] > 0,
        required=f"at least one token and one coordinate in {name}",
        got=f"shape {tuple(tokens.shape)}",
        remedy="drop empty sequences first",
    )


def check_finite(tokens: Tensor, name: str = "tokens") -> None:
    """Refuse NaN and infinities, naming the first place."""
    # A finite sum has finite terms, and adding up is many times faster than looking at each; but sums may overflow.
    if bool(torch.isfinite(tokens.sum())) or bool(torch.isfinite(tokens).all()):
        return
    bad = (~torch.isfinite(tokens)).nonzero()[0]
    place = tuple(int(index) for index in bad)
    raise RequestError(
        required=f"finite {name}",
        got=f"{float(tokens[place])} at index {place}",
        remedy="find where it arises (overflow, division by zero) or drop that sample",
    )
