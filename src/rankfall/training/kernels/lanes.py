"""Attention of tiny heads (rank 1 to 4, up to 16 tokens), a thread for each head of each sequence.

Such a head is smaller than any tile of a matrix unit, but its keys and values fit into one thread's registers:
scores, weights and sums then need no exchange between threads and no memory. Neighbouring threads hold neighbouring
heads, whose numbers lie side by side in the token-major layout, so that every load is coalesced without a transpose.

Biases are added as q, k, v are read; `*_bias_grad` (M, B, H, width) float32 holds one sum per sequence.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _read(base, step, biases, ok, COUNT: tl.constexpr, WIDTH: tl.constexpr):
    """(COUNT * WIDTH) vectors, feature after feature of token after token."""
    found = ()
    for t in tl.static_range(COUNT):
        for f in tl.static_range(WIDTH):
            found = found + (tl.load(base + t * step + f, mask=ok, other=0.0).to(tl.float32) + biases[f],)
    return found


@triton.jit
def _read_bias(base, ok, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr, LANES: tl.constexpr):
    found = ()
    for f in tl.static_range(WIDTH):
        if HAS_BIAS:
            found = found + (tl.load(base + f, mask=ok, other=0.0).to(tl.float32),)
        else:
            found = found + (tl.zeros((LANES,), tl.float32),)
    return found


@triton.jit
def _zeros(COUNT: tl.constexpr, LANES: tl.constexpr):
    found = ()
    for _ in tl.static_range(COUNT):
        found = found + (tl.zeros((LANES,), tl.float32),)
    return found


@triton.jit
def _weights(queries, keys, mask, i, CONTEXT: tl.constexpr, RANK: tl.constexpr, HAS_MASK: tl.constexpr):
    """exp2(score - largest) for each key, and one over their sum. Queries carry the scale and log2(e)."""
    scores = ()
    for j in tl.static_range(CONTEXT):
        score = queries[0] * keys[j * RANK]
        for f in tl.static_range(1, RANK):
            score += queries[f] * keys[j * RANK + f]
        if HAS_MASK:
            score = tl.where(tl.load(mask + i * CONTEXT + j) != 0, score, float("-inf"))
        scores = scores + (score,)
    largest = scores[0]
    for j in tl.static_range(1, CONTEXT):
        largest = tl.maximum(largest, scores[j])
    total = tl.zeros_like(largest)
    weights = ()
    for j in tl.static_range(CONTEXT):
        weight = tl.exp2(scores[j] - largest)
        total += weight
        weights = weights + (weight,)
    return weights, 1.0 / total


@triton.jit
def lanes_forward(
    q, k, v, out, q_bias, k_bias, v_bias, mask,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    HEADS: tl.constexpr, SEQUENCES: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """out (M, B, n, H, u) contiguous; scale includes log2(e)."""
    LANES: tl.constexpr = HEADS * SEQUENCES
    lane = tl.arange(0, LANES)
    head = tl.program_id(0) * HEADS + lane % HEADS
    model = tl.program_id(2).to(tl.int64)
    known = head < heads
    query_biases = _read_bias(q_bias + (model * heads + head) * RANK, known, RANK, HAS_BIAS, LANES)
    key_biases = _read_bias(k_bias + (model * heads + head) * RANK, known, RANK, HAS_BIAS, LANES)
    value_biases = _read_bias(v_bias + (model * heads + head) * VALUE, known, VALUE, HAS_BIAS, LANES)
    sequence = tl.program_id(1) * SEQUENCES + lane // HEADS
    ok = known & (sequence < batch)
    keys = _read(k + model * k_model + sequence * k_sequence + head * RANK, k_token, key_biases, ok, CONTEXT, RANK)
    values = _read(
        v + model * v_model + sequence * v_sequence + head * VALUE, v_token, value_biases, ok, CONTEXT, VALUE
    )
    query_base = q + model * q_model + sequence * q_sequence + head * RANK
    answer = out + ((model * batch + sequence) * TOKENS * heads + head) * VALUE
    for i in range(TOKENS):
        queries = ()
        for f in tl.static_range(RANK):
            read = tl.load(query_base + i * q_token + f, mask=ok, other=0.0).to(tl.float32)
            queries = queries + ((read + query_biases[f]) * scale,)
        weights, share = _weights(queries, keys, mask, i, CONTEXT, RANK, HAS_MASK)
        for f in tl.static_range(VALUE):
            mixed = weights[0] * values[f]
            for j in tl.static_range(1, CONTEXT):
                mixed += weights[j] * values[j * VALUE + f]
            tl.store(answer + i * heads * VALUE + f, (mixed * share).to(out.dtype.element_ty), mask=ok)


@triton.jit
def lanes_backward(
    grad, q, k, v, q_grad, k_grad, v_grad, q_bias, k_bias, v_bias, q_bias_grad, k_bias_grad, v_bias_grad, mask,
    grad_model, grad_sequence, grad_token,
    q_model, q_sequence, q_token, k_model, k_sequence, k_token, v_model, v_sequence, v_token,
    batch, heads, scale, natural_scale,
    TOKENS: tl.constexpr, CONTEXT: tl.constexpr, RANK: tl.constexpr, VALUE: tl.constexpr,
    HEADS: tl.constexpr, SEQUENCES: tl.constexpr, HAS_MASK: tl.constexpr, HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Gradients contiguous."""
    LANES: tl.constexpr = HEADS * SEQUENCES
    lane = tl.arange(0, LANES)
    head = tl.program_id(0) * HEADS + lane % HEADS
    model = tl.program_id(2).to(tl.int64)
    known = head < heads
    query_biases = _read_bias(q_bias + (model * heads + head) * RANK, known, RANK, HAS_BIAS, LANES)
    key_biases = _read_bias(k_bias + (model * heads + head) * RANK, known, RANK, HAS_BIAS, LANES)
    value_biases = _read_bias(v_bias + (model * heads + head) * VALUE, known, VALUE, HAS_BIAS, LANES)
    query_sums = _zeros(RANK, LANES)
    key_sums = _zeros(RANK, LANES)
    value_sums = _zeros(VALUE, LANES)
    sequence = tl.program_id(1) * SEQUENCES + lane // HEADS
    ok = known & (sequence < batch)
    keys = _read(k + model * k_model + sequence * k_sequence + head * RANK, k_token, key_biases, ok, CONTEXT, RANK)
    values = _read(
        v + model * v_model + sequence * v_sequence + head * VALUE, v_token, value_biases, ok, CONTEXT, VALUE
    )
    key_grads = _zeros(CONTEXT * RANK, LANES)
    value_grads = _zeros(CONTEXT * VALUE, LANES)
    query_base = q + model * q_model + sequence * q_sequence + head * RANK
    given = grad + model * grad_model + sequence * grad_sequence + head * VALUE
    row = (model * batch + sequence) * TOKENS * heads + head
    for i in range(TOKENS):
        queries = ()
        for f in tl.static_range(RANK):
            read = tl.load(query_base + i * q_token + f, mask=ok, other=0.0).to(tl.float32)
            queries = queries + ((read + query_biases[f]) * scale,)
        grads = ()
        for f in tl.static_range(VALUE):
            grads = grads + (tl.load(given + i * grad_token + f, mask=ok, other=0.0).to(tl.float32),)
        weights, share = _weights(queries, keys, mask, i, CONTEXT, RANK, HAS_MASK)
        pulls = ()
        level = tl.zeros((LANES,), tl.float32)
        for j in tl.static_range(CONTEXT):
            pull = grads[0] * values[j * VALUE]
            for f in tl.static_range(1, VALUE):
                pull += grads[f] * values[j * VALUE + f]
            level += weights[j] * pull
            pulls = pulls + (pull,)
        level *= share
        query_grads = _zeros(RANK, LANES)
        new_keys = ()
        new_values = ()
        for j in tl.static_range(CONTEXT):
            weight = weights[j] * share
            score_grad = weight * (pulls[j] - level)
            moved = ()
            for f in tl.static_range(RANK):
                # queries hold scale * log2(e) * q; the factor natural_scale / scale is applied once, at the end
                new_keys = new_keys + (key_grads[j * RANK + f] + score_grad * queries[f],)
                moved = moved + (query_grads[f] + score_grad * keys[j * RANK + f],)
            query_grads = moved
            for f in tl.static_range(VALUE):
                new_values = new_values + (value_grads[j * VALUE + f] + weight * grads[f],)
        key_grads = new_keys
        value_grads = new_values
        sums = ()
        for f in tl.static_range(RANK):
            found = query_grads[f] * natural_scale
            sums = sums + (query_sums[f] + found,)
            tl.store(q_grad + (row + i * heads) * RANK + f, found.to(q_grad.dtype.element_ty), mask=ok)
        query_sums = sums
    row = (model * batch + sequence) * CONTEXT * heads + head
    for j in tl.static_range(CONTEXT):
        sums = ()
        for f in tl.static_range(RANK):
            found = key_grads[j * RANK + f] * (natural_scale / scale)
            sums = sums + (key_sums[f] + found,)
            tl.store(k_grad + (row + j * heads) * RANK + f, found.to(k_grad.dtype.element_ty), mask=ok)
        key_sums = sums
        sums = ()
        for f in tl.static_range(VALUE):
            found = value_grads[j * VALUE + f]
            sums = sums + (value_sums[f] + found,)
            tl.store(v_grad + (row + j * heads) * VALUE + f, found.to(v_grad.dtype.element_ty), mask=ok)
        value_sums = sums
    if HAS_BIAS:
        place = (model * batch + sequence) * heads + head
        for f in tl.static_range(RANK):
            tl.store(q_bias_grad + place * RANK + f, query_sums[f], mask=ok)
            tl.store(k_bias_grad + place * RANK + f, key_sums[f], mask=ok)
        for f in tl.static_range(VALUE):
            tl.store(v_bias_grad + place * VALUE + f, value_sums[f], mask=ok)
