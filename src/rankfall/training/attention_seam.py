"""The one place where training computes attention: q, k, v, mask -> output.

Token-major layout (models, batch, token, head, feature), which is what the projections write: the fused kernel reads
it in place and needs no transposes. Beside it are the PyTorch ways, equal up to rounding, and the rule that picks one
by shape and machine.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankfall.training.kernels.launch import misfit
from rankfall.training.kernels.operator import small_heads

WAYS = ("kernel", "fused", "products")
SHORT, LONG = 64, 128
"""On GPUs PyTorch's fused attention pays from 64 tokens on for larger ranks; above 128 always: it keeps no scores."""
FUSED_RANK = 32
SINGLE_HEAD = 256
"""On a processor it pays but for single heads of fewer numbers: tokens times rank, gradient included, two cores."""

Biases = tuple[Tensor, Tensor, Tensor]


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    scale: float,
    biases: Biases | None = None,
    way: str | None = None,
) -> Tensor:
    """Softmax attention of every head of every model.

    q (M, B, n, H, r), k (M, B, c, H, r), v (M, B, c, H, u) -> (M, B, n, H, u); mask (n, c) is True where token i may
    attend to token j, None where it always may. Any strides. Biases of q, k and v, each (M, H * width), are added
    here, since a kernel adds them for nothing where a separate sum would go through memory once more.
    """
    chosen = way or choose(q, k, v)
    if chosen == "kernel":
        return small_heads(q, k, v, *(biases or (None, None, None)), mask, scale)
    if biases is not None:
        q, k, v = (x + bias.view(-1, 1, 1, *x.shape[3:]) for x, bias in zip((q, k, v), biases, strict=True))
    return (_fused if chosen == "fused" else _products)(q, k, v, mask, scale)


def choose(q: Tensor, k: Tensor, v: Tensor) -> str:
    """The fastest way by shape: on GPUs PyTorch's own kernel pads heads to tiles that small ones cannot fill."""
    tokens, rank = max(q.shape[2], k.shape[2]), max(q.shape[-1], v.shape[-1])
    if not q.is_cuda:
        return "products" if q.shape[3] == 1 and tokens * rank < SINGLE_HEAD else "fused"
    if misfit("cuda", q.dtype, tokens, rank) is None:
        return "kernel"
    return "fused" if tokens > LONG or (tokens >= SHORT and rank >= FUSED_RANK) else "products"


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
