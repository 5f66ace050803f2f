"""From queries and keys to attention weights: scores, then softmax or hardmax over the allowed keys."""

from __future__ import annotations

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.shapes import Allowed, Scores

Kind = Literal["softmax", "hardmax"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def scores(query: Float[Tensor, "... n r"], key: Float[Tensor, "... m r"], scale: float | Tensor) -> Scores:
    """scale * <q_i, k_j>. A tensor of scales has one entry per head, or any shape that broadcasts."""
    score = query @ key.mT
    return score if isinstance(scale, float) and scale == 1.0 else score * scale


def softmax_weights(score: Scores, allowed: Allowed | None = None) -> Scores:
    """Row-stochastic weights: exp(score) over the allowed keys, normalised."""
    if allowed is not None:
        score = score.masked_fill(~allowed, -torch.inf)
    return torch.softmax(score, dim=-1)


def hardmax_weights(score: Scores, allowed: Allowed | None = None) -> Scores:
    """All weight on the keys of the largest score; ties split it evenly."""
    if allowed is not None:
        score = score.masked_fill(~allowed, -torch.inf)
    best = (score == score.amax(dim=-1, keepdim=True)).to(score.dtype)
    return best / best.sum(dim=-1, keepdim=True)


def weigh(score: Scores, allowed: Allowed | None, kind: Kind) -> Scores:
    """Softmax or hardmax, by name."""
    if kind == "softmax":
        return softmax_weights(score, allowed)
    if kind == "hardmax":
        return hardmax_weights(score, allowed)
    raise RequestError(required=f"a kind among {', '.join(KINDS)}", got=kind, remedy="softmax is the usual one")
