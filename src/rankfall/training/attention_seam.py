"""The one place where training computes attention: q, k, v, mask -> output.

Token-major layout (models, batch, token, head, feature), which is what the projections write: a kernel that reads it
in place needs no transposes. Here are the PyTorch ways, equal up to rounding, and the rule that picks one by shape;
a fused kernel replaces what `attend` does and nothing else.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

WAYS = ("fused", "products", "unrolled")
LONG = 128
"""More tokens than this and PyTorch's fused attention, which keeps no scores, is the better way."""
UNROLLED_RANK = 2
"""Largest rank for which the compiler is given scores as sums of products, term by term."""


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, way: str | None = None) -> Tensor:
    """Softmax attention of every head of every model.

    q (M, B, n, H, r), k (M, B, c, H, r), v (M, B, c, H, u) -> (M, B, n, H, u); mask (n, c) is True where token i may
    attend to token j, None where it always may. Any strides.
    """
    chosen = way or choose(q, v)
    return {"fused": _fused, "products": _products, "unrolled": _unrolled}[chosen](q, k, v, mask, scale)


def choose(q: Tensor, v: Tensor) -> str:
    """PyTorch's fused attention pads each head to large tiles: it pays for long sequences and large ranks only."""
    if q.is_cuda and torch.compiler.is_compiling() and max(q.shape[-1], v.shape[-1]) <= UNROLLED_RANK:
        return "unrolled"
    return "fused" if q.shape[2] > LONG else "products"


def _fused(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """`scaled_dot_product_attention`, models and batch as one axis."""
    flat_q, flat_k, flat_v = (x.flatten(0, 1).transpose(1, 2) for x in (q, k, v))
    out = torch.nn.functional.scaled_dot_product_attention(flat_q, flat_k, flat_v, attn_mask=mask, scale=scale)
    return out.transpose(1, 2).unflatten(0, q.shape[:2])


def _products(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scores and weights in memory, by batched matrix products."""
    scores = (q * scale).transpose(2, 3) @ k.permute(0, 1, 3, 4, 2)
    if mask is not None:
        scores = scores.masked_fill(~mask, -math.inf)
    return (scores.softmax(dim=-1) @ v.transpose(2, 3)).transpose(2, 3)


def _unrolled(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Scores as sums of r elementwise products (M, B, n, c, H): nothing but pointwise work and sums over c.

    A compiler can keep the scores in registers; without one this only wastes memory. The largest score is not
    differentiated: the weights do not depend on what is subtracted.
    """
    q = q * scale
    scores = sum(q[:, :, :, None, :, f] * k[:, :, None, :, :, f] for f in range(q.shape[-1]))
    assert isinstance(scores, Tensor)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, :, None], -math.inf)
    weights = (scores - scores.detach().amax(dim=3, keepdim=True)).exp()
    total = weights.sum(dim=3)
    parts = [(weights * v[:, :, None, :, :, f]).sum(dim=3) / total for f in range(v.shape[-1])]
    return torch.stack(parts, dim=-1)
