"""Attention of one head over one longer sequence, a block of queries against a block of keys at a time.

The weights of a row never stand side by side: the forward kernel keeps a running largest score and sum. The gradient
is two kernels, one over blocks of queries and one over blocks of keys; the first leaves each row's statistics for the
second in `rows` (M, B, H, 2, n): the log2 of the sum of weights, and the mean pull of the gradient on them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankfall.training.kernels.tiles import product


@triton.jit
def _block(base, step, first, count, bias, SIZE: tl.constexpr, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(SIZE, PADDED) from token `first` on, and what of it exists."""
    t = (first + tl.arange(0, SIZE))[:, None]
    f = tl.arange(0, PADDED)[None, :]
    there = (t < count) & (f < WIDTH)
    read = tl.load(base + t * step + f, mask=there, other=0.0)
    return (read.to(tl.float32) + tl.where(there, bias, 0.0)).to(read.dtype), there


@triton.jit
def _bias(base, WIDTH: tl.constexpr, PADDED: tl.constexpr, HAS_BIAS: tl.constexpr):
    f = tl.arange(0, PADDED)[None, :]
    if HAS_BIAS:
        found = tl.load(base + f, mask=f < WIDTH, other=0.0)
    else:
        found = tl.zeros((1, PADDED), tl.float32)
    return found.to(tl.float32)


@triton.jit
def _scores(
    queries, keys, mask, first, seen, tokens, context, scale,
    SIZE: tl.constexpr, HAS_MASK: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """(SIZE, SIZE) scores in powers of two, minus infinity where attention is not allowed."""
    scores = product(queries, tl.trans(keys), PRECISION) * scale
    i = (first + tl.arange(0, SIZE))[:, None]
    j = (seen + tl.arange(0, SIZE))[None, :]
    allowed = (j < context) & (i >= 0)
    if HAS_MASK:
        there = (i < tokens) & (j < context)
        allowed = allowed & (tl.load(mask + i * context + j, mask=there, other=1) != 0)
    return tl.where(allowed, scores, float("-inf"))


@triton.jit
def _merge(largest, total, mean, scores, pulls):
    """Running largest score, sum of weights and weighted mean of pulls, with one more block of scores."""
    new = tl.maximum(largest, tl.max(scores, axis=1, keep_dims=True))
    # A row may see nothing of this block, nor of any before it.
    shift = tl.where(new == float("-inf"), 0.0, new)
    weights = tl.exp2(scores - shift)
    kept = tl.exp2(largest - shift)
    total = total * kept + tl.sum(weights, axis=1, keep_dims=True)
    mean = mean * kept + tl.sum(weights * pulls, axis=1, keep_dims=True)
    return new, total, mean, weights, kept


@triton.jit
def long_forward(
    q, k, v, out, q_bias, k_bias, v_bias, mask,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, SIZE: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    RANK_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out (M, B, n, H, u) contiguous. Programs: head, block of queries of a sequence, model."""
    BLOCKS: tl.constexpr = (TOKENS + SIZE - 1) // SIZE
    head = tl.program_id(0)
    sequence = tl.program_id(1) // BLOCKS
    first = tl.program_id(1) % BLOCKS * SIZE
    model = tl.program_id(2).to(tl.int64)
    column = model * heads + head
    query_bias = _bias(q_bias + column * RANK, RANK, RANK_PADDED, HAS_BIAS)
    key_bias = _bias(k_bias + column * RANK, RANK, RANK_PADDED, HAS_BIAS)
    value_bias = _bias(v_bias + column * VALUE, VALUE, VALUE_PADDED, HAS_BIAS)
    query_base = q + model * q_model + sequence * q_sequence + head * RANK
    queries, queries_there = _block(query_base, q_token, first, TOKENS, query_bias, SIZE, RANK, RANK_PADDED)
    known = k + model * k_model + sequence * k_sequence + head * RANK
    held = v + model * v_model + sequence * v_sequence + head * VALUE
    largest = tl.full((SIZE, 1), float("-inf"), tl.float32)
    total = tl.zeros((SIZE, 1), tl.float32)
    unused = tl.zeros((SIZE, 1), tl.float32)
    mixed = tl.zeros((SIZE, VALUE_PADDED), tl.float32)
    for seen in range(0, CONTEXT, SIZE):
        keys, keys_there = _block(known, k_token, seen, CONTEXT, key_bias, SIZE, RANK, RANK_PADDED)
        values, values_there = _block(held, v_token, seen, CONTEXT, value_bias, SIZE, VALUE, VALUE_PADDED)
        scores = _scores(queries, keys, mask, first, seen, TOKENS, CONTEXT, scale, SIZE, HAS_MASK, PRECISION)
        largest, total, unused, weights, kept = _merge(largest, total, unused, scores, 0.0)
        mixed = mixed * kept + product(weights.to(values.dtype), values, PRECISION)
    t = (first + tl.arange(0, SIZE))[:, None]
    f = tl.arange(0, VALUE_PADDED)[None, :]
    answer = out + ((model * batch + sequence) * TOKENS * heads + head) * VALUE
    tl.store(
        answer + t * heads * VALUE + f, (mixed / total).to(out.dtype.element_ty), mask=(t < TOKENS) & (f < VALUE)
    )


@triton.jit
def long_query_grads(
    grad, q, k, v, q_grad, rows, q_bias, k_bias, v_bias, q_bias_grad, mask,
    grad_model, grad_sequence, grad_token,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale, natural_scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, SIZE: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    RANK_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradient of a block of queries and the statistics of its rows."""
    BLOCKS: tl.constexpr = (TOKENS + SIZE - 1) // SIZE
    head = tl.program_id(0)
    sequence = tl.program_id(1) // BLOCKS
    first = tl.program_id(1) % BLOCKS * SIZE
    model = tl.program_id(2).to(tl.int64)
    column = model * heads + head
    query_bias = _bias(q_bias + column * RANK, RANK, RANK_PADDED, HAS_BIAS)
    key_bias = _bias(k_bias + column * RANK, RANK, RANK_PADDED, HAS_BIAS)
    value_bias = _bias(v_bias + column * VALUE, VALUE, VALUE_PADDED, HAS_BIAS)
    query_base = q + model * q_model + sequence * q_sequence + head * RANK
    queries, queries_there = _block(query_base, q_token, first, TOKENS, query_bias, SIZE, RANK, RANK_PADDED)
    given = grad + model * grad_model + sequence * grad_sequence + head * VALUE
    nothing = tl.zeros_like(value_bias)
    grads, grads_there = _block(given, grad_token, first, TOKENS, nothing, SIZE, VALUE, VALUE_PADDED)
    known = k + model * k_model + sequence * k_sequence + head * RANK
    held = v + model * v_model + sequence * v_sequence + head * VALUE
    largest = tl.full((SIZE, 1), float("-inf"), tl.float32)
    total = tl.zeros((SIZE, 1), tl.float32)
    level = tl.zeros((SIZE, 1), tl.float32)
    for seen in range(0, CONTEXT, SIZE):
        keys, keys_there = _block(known, k_token, seen, CONTEXT, key_bias, SIZE, RANK, RANK_PADDED)
        values, values_there = _block(held, v_token, seen, CONTEXT, value_bias, SIZE, VALUE, VALUE_PADDED)
        scores = _scores(queries, keys, mask, first, seen, TOKENS, CONTEXT, scale, SIZE, HAS_MASK, PRECISION)
        pulls = product(grads, tl.trans(values), PRECISION)
        largest, total, level, weights, kept = _merge(largest, total, level, scores, pulls)
    level = level / total
    norm = largest + tl.log2(total)
    query_grads = tl.zeros((SIZE, RANK_PADDED), tl.float32)
    for seen in range(0, CONTEXT, SIZE):
        keys, keys_there = _block(known, k_token, seen, CONTEXT, key_bias, SIZE, RANK, RANK_PADDED)
        values, values_there = _block(held, v_token, seen, CONTEXT, value_bias, SIZE, VALUE, VALUE_PADDED)
        scores = _scores(queries, keys, mask, first, seen, TOKENS, CONTEXT, scale, SIZE, HAS_MASK, PRECISION)
        pulls = product(grads, tl.trans(values), PRECISION)
        score_grads = tl.exp2(scores - norm) * (pulls - level) * natural_scale
        query_grads += product(score_grads.to(keys.dtype), keys, PRECISION)
    t = (first + tl.arange(0, SIZE))[:, None]
    f = tl.arange(0, RANK_PADDED)[None, :]
    line = (model * batch + sequence) * heads
    place = q_grad + (line * TOKENS + head) * RANK + t * heads * RANK + f
    tl.store(place, query_grads.to(q_grad.dtype.element_ty), mask=queries_there)
    place = rows + (line + head) * 2 * TOKENS + t
    tl.store(place, norm, mask=t < TOKENS)
    tl.store(place + TOKENS, level, mask=t < TOKENS)
    if HAS_BIAS:
        part = ((model * tl.num_programs(1) + tl.program_id(1)) * heads + head) * RANK + tl.arange(0, RANK_PADDED)
        # Rows beyond the last query hold a bias-free zero query and a zero gradient: they add nothing.
        tl.store(q_bias_grad + part, tl.sum(query_grads, axis=0), mask=tl.arange(0, RANK_PADDED) < RANK)


@triton.jit
def long_key_grads(
    grad, q, k, v, k_grad, v_grad, rows, q_bias, k_bias, v_bias, k_bias_grad, v_bias_grad, mask,
    grad_model, grad_sequence, grad_token,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale, natural_scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, SIZE: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    RANK_PADDED: tl.constexpr, VALUE_PADDED: tl.constexpr,
    HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Gradients of a block of keys and values."""
    BLOCKS: tl.constexpr = (CONTEXT + SIZE - 1) // SIZE
    head = tl.program_id(0)
    sequence = tl.program_id(1) // BLOCKS
    seen = tl.program_id(1) % BLOCKS * SIZE
    model = tl.program_id(2).to(tl.int64)
    column = model * heads + head
    query_bias = _bias(q_bias + column * RANK, RANK, RANK_PADDED, HAS_BIAS)
    key_bias = _bias(k_bias + column * RANK, RANK, RANK_PADDED, HAS_BIAS)
    value_bias = _bias(v_bias + column * VALUE, VALUE, VALUE_PADDED, HAS_BIAS)
    nothing = tl.zeros_like(value_bias)
    known = k + model * k_model + sequence * k_sequence + head * RANK
    keys, keys_there = _block(known, k_token, seen, CONTEXT, key_bias, SIZE, RANK, RANK_PADDED)
    held = v + model * v_model + sequence * v_sequence + head * VALUE
    values, values_there = _block(held, v_token, seen, CONTEXT, value_bias, SIZE, VALUE, VALUE_PADDED)
    query_base = q + model * q_model + sequence * q_sequence + head * RANK
    given = grad + model * grad_model + sequence * grad_sequence + head * VALUE
    line = (model * batch + sequence) * heads
    statistics = rows + (line + head) * 2 * TOKENS
    key_grads = tl.zeros((SIZE, RANK_PADDED), tl.float32)
    value_grads = tl.zeros((SIZE, VALUE_PADDED), tl.float32)
    for first in range(0, TOKENS, SIZE):
        queries, queries_there = _block(query_base, q_token, first, TOKENS, query_bias, SIZE, RANK, RANK_PADDED)
        grads, grads_there = _block(given, grad_token, first, TOKENS, nothing, SIZE, VALUE, VALUE_PADDED)
        t = (first + tl.arange(0, SIZE))[:, None]
        norm = tl.load(statistics + t, mask=t < TOKENS, other=0.0)
        level = tl.load(statistics + TOKENS + t, mask=t < TOKENS, other=0.0)
        scores = _scores(queries, keys, mask, first, seen, TOKENS, CONTEXT, scale, SIZE, HAS_MASK, PRECISION)
        weights = tl.exp2(scores - norm)
        pulls = product(grads, tl.trans(values), PRECISION)
        score_grads = weights * (pulls - level) * natural_scale
        value_grads += product(tl.trans(weights.to(grads.dtype)), grads, PRECISION)
        key_grads += product(tl.trans(score_grads.to(queries.dtype)), queries, PRECISION)
    s = (seen + tl.arange(0, SIZE))[:, None]
    f = tl.arange(0, RANK_PADDED)[None, :]
    place = k_grad + (line * CONTEXT + head) * RANK + s * heads * RANK + f
    tl.store(place, key_grads.to(k_grad.dtype.element_ty), mask=keys_there)
    f = tl.arange(0, VALUE_PADDED)[None, :]
    place = v_grad + (line * CONTEXT + head) * VALUE + s * heads * VALUE + f
    tl.store(place, value_grads.to(v_grad.dtype.element_ty), mask=values_there)
    if HAS_BIAS:
        part = (model * tl.num_programs(1) + tl.program_id(1)) * heads + head
        f = tl.arange(0, RANK_PADDED)
        tl.store(k_bias_grad + part * RANK + f, tl.sum(key_grads, axis=0), mask=f < RANK)
        f = tl.arange(0, VALUE_PADDED)
        tl.store(v_bias_grad + part * VALUE + f, tl.sum(value_grads, axis=0), mask=f < VALUE)
