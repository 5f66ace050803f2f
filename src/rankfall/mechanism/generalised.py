"""Generalised heads of paper A: any map of the projected points and the whole query to the simplex.

The lower bounds of A-thm2 speak of these: a head sees the points X only through K^T X, but may use the query y
in any way, and mixes the points with any weights that are non-negative and sum to one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rankfall.errors import require
from rankfall.mechanism.checks import check_finite, check_tokens

Mixing = Callable[[Tensor, Tensor], Tensor]
"""Takes K^T X as (..., m, r) and the queries as (..., n, d); gives weights (..., n, m) on the points."""


@final
@dataclass(frozen=True)
class GeneralisedHead:
    """phi(K^T X, y) applied to X V: `key` is (d, r), `value` is (d, o) or a number for a multiple of the identity."""

    key: Tensor
    mixing: Mixing
    value: Tensor | float = 1.0


def generalised_attention(
    heads: Sequence[GeneralisedHead], points: Tensor, queries: Tensor, *, tolerance: float = 1e-5
) -> Tensor:
    """Sum over heads of phi_h(K_h^T X, y) X V_h: (..., n, o). Weights off the simplex are refused."""
    require(len(heads) > 0, required="at least one head", got="none", remedy="give a list of GeneralisedHead")
    for name, given in (("points", points), ("queries", queries)):
        check_tokens(given, name)
        check_finite(given, name)
    return torch.stack([_one(head, points, queries, tolerance) for head in heads]).sum(dim=0)


def _one(head: GeneralisedHead, points: Tensor, queries: Tensor, tolerance: float) -> Tensor:
    weights = head.mixing(points @ head.key, queries)
    least, sums = weights.detach().min(), weights.detach().sum(dim=-1)
    on_simplex = bool(least >= -tolerance) and bool(((sums - 1).abs() <= tolerance).all())
    require(
        on_simplex,
        required="non-negative weights that sum to one",
        got=f"smallest {float(least):.3g}, sums from {float(sums.min()):.6g} to {float(sums.max()):.6g}",
        remedy="end the mixing map with a softmax or a hardmax",
    )
    mixed = weights @ points
    return mixed @ head.value if isinstance(head.value, Tensor) else mixed * head.value
