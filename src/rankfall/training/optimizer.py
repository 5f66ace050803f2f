"""AdamW without weight decay for a stack: one row of parameters per model, one learning rate per model."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfall.training.recipe import Recipe


def adam_(
    rows: Tensor,
    grads: Tensor,
    first: Tensor,
    second: Tensor,
    step: Tensor,
    rates: Tensor,
    alive: Tensor,
    recipe: Recipe,
) -> None:
    """One step in place. rows, grads, first, second (M, P); step () int64, counted from one; rates (M, 1) or (M, P).

    A model that is not alive keeps its weights; nothing in one row depends on another row.
    """
    decay, square_decay = recipe.betas
    first.lerp_(grads, 1.0 - decay)
    second.mul_(square_decay).addcmul_(grads, grads, value=1.0 - square_decay)
    count = step.double()
    correction = (1.0 - decay**count).to(rows.dtype)
    square_correction = (1.0 - square_decay**count).to(rows.dtype)
    spread = (second / square_correction).sqrt_().add_(recipe.epsilon)
    update = (rates / correction) * first / spread
    rows.sub_(torch.where(alive[:, None], update, torch.zeros_like(update)))


def clipped(grads: Tensor, longest: float) -> Tensor:
    """Rows longer than `longest` scaled down to it."""
    length = torch.linalg.vector_norm(grads, dim=1, keepdim=True)
    return grads * (longest / length.clamp_min(longest))
