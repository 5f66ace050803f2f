"""Attention of small heads over at most 16 tokens: many heads in one batched tile product.

A program takes `HEADS` heads of `SEQUENCES` sequences as the batch axis of (batch, token, feature) tiles. A head's
weights are one tile, which is never stored: the gradient computes it again. Ranks and tokens below 16, the matrix
units' least, are padded on chip only; device memory is read in its own layout.

Biases are added as q, k, v are read; `*_bias_grad` (M, B, H, width) float32 holds one sum per sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl

SIDE: tl.constexpr = tl.constexpr(16)
"""Tokens of a tile."""


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b over the last two axes, summed in float32.

    PRECISION is how float32 factors are taken: tf32, tf32x3 (three passes, which keeps float32), or `widened`: any
    type made float32 first, for Triton's interpreter, which multiplies the bits of bfloat16 as if they were integers.
    """
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)


@triton.jit
def _tile(base, step, count, ok, bias, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(batch, SIDE, PADDED), and which of its entries exist."""
    t = tl.arange(0, SIDE)[None, :, None]
    f = tl.arange(0, PADDED)[None, None, :]
    there = ok[:, None, None] & (t < count) & (f < WIDTH)
    read = tl.load(base[:, None, None] + t * step + f, mask=there, other=0.0)
    return (read.to(tl.float32) + tl.where(there, bias, 0.0)).to(read.dtype), there


@triton.jit
def _bias(base, ok, WIDTH: tl.constexpr, PADDED: tl.constexpr, LANES: tl.constexpr, HAS_BIAS: tl.constexpr):
    f = tl.arange(0, PADDED)[None, None, :]
    if HAS_BIAS:
        found = tl.load(base[:, None, None] + f, mask=ok[:, None, None] & (f < WIDTH), other=0.0)
    else:
        found = tl.zeros((LANES, 1, PADDED), tl.float32)
    return found.to(tl.float32)


@triton.jit
def _weights(queries, keys, mask, tokens, context, scale, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr):
    """(batch, SIDE, SIDE) softmax weights; scale includes log2(e)."""
    scores = product(queries, tl.permute(keys, (0, 2, 1)), PRECISION) * scale
    i = tl.arange(0, SIDE)[:, None]
    j = tl.arange(0, SIDE)[None, :]
    allowed = (j < context) & (i >= 0)
    if HAS_MASK:
        allowed = allowed & (tl.load(mask + i * context + j, mask=(i < tokens) & (j < context), other=1) != 0)
    scores = tl.where(allowed[None], scores, float("-inf"))
    weights = tl.exp2(scores - tl.max(scores, axis=2, keep_dims=True))
    return weights / tl.sum(weights, axis=2, keep_dims=True)


@triton.jit
def tiles_forward(
    q, k, v, out, q_bias, k_bias, v_bias, mask,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    RANK_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HEADS: tl.constexpr, SEQUENCES: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """out (M, B, n, H, u) contiguous."""
    LANES: tl.constexpr = HEADS * SEQUENCES
    lane = tl.arange(0, LANES)
    head = tl.program_id(0) * HEADS + lane % HEADS
    sequence = tl.program_id(1) * SEQUENCES + lane // HEADS
    model = tl.program_id(2).to(tl.int64)
    ok = (head < heads) & (sequence < batch)
    column = model * heads + head
    query_bias = _bias(q_bias + column * RANK, ok, RANK, RANK_PADDED, LANES, HAS_BIAS)
    key_bias = _bias(k_bias + column * RANK, ok, RANK, RANK_PADDED, LANES, HAS_BIAS)
    value_bias = _bias(v_bias + column * VALUE, ok, VALUE, VALUE_PADDED, LANES, HAS_BIAS)
    keys, keys_there = _tile(
        k + model * k_model + sequence * k_sequence + head * RANK,
        k_token, CONTEXT, ok, key_bias, RANK, RANK_PADDED,
    )  # fmt: skip
    values, values_there = _tile(
        v + model * v_model + sequence * v_sequence + head * VALUE,
        v_token, CONTEXT, ok, value_bias, VALUE, VALUE_PADDED,
    )  # fmt: skip
    queries, queries_there = _tile(
        q + model * q_model + sequence * q_sequence + head * RANK,
        q_token, TOKENS, ok, query_bias, RANK, RANK_PADDED,
    )  # fmt: skip
    weights = _weights(queries, keys, mask, TOKENS, CONTEXT, scale, HAS_MASK, PRECISION)
    mixed = product(weights.to(values.dtype), values, PRECISION)
    t = tl.arange(0, SIDE)[None, :, None]
    f = tl.arange(0, VALUE_PADDED)[None, None, :]
    place = (((model * batch + sequence) * TOKENS * heads + head) * VALUE)[:, None, None] + t * heads * VALUE + f
    there = ok[:, None, None] & (t < TOKENS) & (f < VALUE)
    tl.store(out + place, mixed.to(out.dtype.element_ty), mask=there)


@triton.jit
def tiles_backward(
    grad, q, k, v, q_grad, k_grad, v_grad, q_bias, k_bias, v_bias, q_bias_grad, k_bias_grad, v_bias_grad, mask,
    grad_model, grad_sequence, grad_token,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale, natural_scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    RANK_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HEADS: tl.constexpr, SEQUENCES: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients contiguous."""
    LANES: tl.constexpr = HEADS * SEQUENCES
    lane = tl.arange(0, LANES)
    head = tl.program_id(0) * HEADS + lane % HEADS
    sequence = tl.program_id(1) * SEQUENCES + lane // HEADS
    model = tl.program_id(2).to(tl.int64)
    ok = (head < heads) & (sequence < batch)
    column = model * heads + head
    query_bias = _bias(q_bias + column * RANK, ok, RANK, RANK_PADDED, LANES, HAS_BIAS)
    key_bias = _bias(k_bias + column * RANK, ok, RANK, RANK_PADDED, LANES, HAS_BIAS)
    value_bias = _bias(v_bias + column * VALUE, ok, VALUE, VALUE_PADDED, LANES, HAS_BIAS)
    keys, keys_there = _tile(
        k + model * k_model + sequence * k_sequence + head * RANK,
        k_token, CONTEXT, ok, key_bias, RANK, RANK_PADDED,
    )  # fmt: skip
    values, values_there = _tile(
        v + model * v_model + sequence * v_sequence + head * VALUE,
        v_token, CONTEXT, ok, value_bias, VALUE, VALUE_PADDED,
    )  # fmt: skip
    queries, queries_there = _tile(
        q + model * q_model + sequence * q_sequence + head * RANK,
        q_token, TOKENS, ok, query_bias, RANK, RANK_PADDED,
    )  # fmt: skip
    grads, grads_there = _tile(
        grad + model * grad_model + sequence * grad_sequence + head * VALUE,
        grad_token, TOKENS, ok, tl.zeros_like(value_bias), VALUE, VALUE_PADDED,
    )  # fmt: skip
    weights = _weights(queries, keys, mask, TOKENS, CONTEXT, scale, HAS_MASK, PRECISION)
    pulls = product(grads, tl.permute(values, (0, 2, 1)), PRECISION)
    level = tl.sum(weights * pulls, axis=2, keep_dims=True)
    score_grads = (weights * (pulls - level) * natural_scale).to(keys.dtype)
    value_grads = product(tl.permute(weights.to(grads.dtype), (0, 2, 1)), grads, PRECISION)
    key_grads = product(tl.permute(score_grads, (0, 2, 1)), queries, PRECISION)
    query_grads = product(score_grads, keys, PRECISION)
    row = (model * batch + sequence) * heads
    t = tl.arange(0, SIDE)[None, :, None]
    f = tl.arange(0, RANK_PADDED)[None, None, :]
    at = (row * TOKENS + head)[:, None, None] + t * heads
    tl.store(q_grad + at * RANK + f, query_grads.to(q_grad.dtype.element_ty), mask=queries_there)
    at = (row * CONTEXT + head)[:, None, None] + t * heads
    tl.store(k_grad + at * RANK + f, key_grads.to(k_grad.dtype.element_ty), mask=keys_there)
    f = tl.arange(0, VALUE_PADDED)[None, None, :]
    tl.store(v_grad + at * VALUE + f, value_grads.to(v_grad.dtype.element_ty), mask=values_there)
    if HAS_BIAS:
        at = (row + head)[:, None]
        f = tl.arange(0, RANK_PADDED)[None, :]
        there = ok[:, None] & (f < RANK)
        tl.store(q_bias_grad + at * RANK + f, tl.sum(query_grads, axis=1), mask=there)
        tl.store(k_bias_grad + at * RANK + f, tl.sum(key_grads, axis=1), mask=there)
        f = tl.arange(0, VALUE_PADDED)[None, :]
        there = ok[:, None] & (f < VALUE)
        tl.store(v_bias_grad + at * VALUE + f, tl.sum(value_grads, axis=1), mask=there)
