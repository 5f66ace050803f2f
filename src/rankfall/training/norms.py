"""Norms with a model axis: each token of each model, times what that model has learned."""

from __future__ import annotations

import torch
from torch import Tensor


def normalise(kind: str, x: Tensor, gain: Tensor | None, bias: Tensor | None) -> Tensor:
    """x (M, T, w); gain (M, 1) or (M, w). A zero token stays zero."""
    if kind == "none":
        return x
    assert gain is not None
    if kind == "layer":
        x = x - x.mean(dim=-1, keepdim=True)
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
    target = gain[:, None] if kind == "unit" else gain[:, None] * x.shape[-1] ** 0.5
    x = x * (target / length)
    return x if bias is None else x + bias[:, None]
