"""The feed-forward y = relu(x R + a) F + b of every model. Its hidden numbers never reach memory: gradients compute
them again.

Axes: M models, rows (tokens of all sequences), width, hidden. A program of `rows_forward` and `rows_backward` keeps
some rows of one model and goes over (a share of) the hidden axis; one of `weights_backward` keeps some hidden columns
and goes over a share of the rows, so that its sums stay in registers.

Weights come in the type in which factors are multiplied, models 8 * weight_model numbers apart, and biases in
float32, 4 * *_bias_model apart: 8 and 4 tell the compiler that 16 bytes can be read at once. Sums are float32.
Gradients are multiplied by a power of two that brings the largest of a block of rows to [1, 2), and divided by it in
the end: that is exact, and a type of narrow range then neither overflows nor loses what counts.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankfall.training.kernels.projections import power_below
from rankfall.training.kernels.tiles import product


@triton.jit
def rows_forward(
    x, rise, fall, rise_bias, fall_bias, out, rows, weight_model, rise_bias_model, fall_bias_model,
    HIDDEN: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out (shares, M, rows, width)."""
    model = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    w = tl.arange(0, WIDTH)
    c = tl.arange(0, BLOCK)
    tokens = tl.load(x + model * rows * WIDTH + r * WIDTH + w[None, :], mask=r < rows, other=0.0)
    tokens = tokens.to(rise.dtype.element_ty)
    rise += model * (weight_model * 8)
    fall += model * (weight_model * 8)
    rise_bias += model * (rise_bias_model * 4)
    answer = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, SHARE, BLOCK, num_stages=STAGES):
        column = share * SHARE + first + c
        up = tl.load(rise + w[:, None] * HIDDEN + column[None, :])
        hidden = product(tokens, up, PRECISION) + tl.load(rise_bias + column)[None, :]
        down = tl.load(fall + column[:, None] * WIDTH + w[None, :])
        answer += product(tl.maximum(hidden, 0.0).to(down.dtype), down, PRECISION)
    fall_bias += model * (fall_bias_model * 4)
    answer += tl.load(fall_bias + w, mask=(w >= 0) & (share == 0), other=0.0)[None, :]
    place = (share * tl.num_programs(2) + model) * rows * WIDTH
    tl.store(out + place + r * WIDTH + w[None, :], answer, mask=r < rows)


@triton.jit
def rows_backward(
    grad, x, rise, fall, rise_bias, x_grad, x_rounded, grad_rounded, powers, rows, weight_model, rise_bias_model,
    HIDDEN: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x_grad (shares, M, rows, width); for the gradients of weights also x and the scaled gradient as they are
    multiplied, and the powers of two (M, blocks of rows) that these lack.
    """
    model = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    w = tl.arange(0, WIDTH)
    c = tl.arange(0, BLOCK)
    at = model * rows * WIDTH + r * WIDTH + w[None, :]
    tokens = tl.load(x + at, mask=r < rows, other=0.0).to(rise.dtype.element_ty)
    grads = tl.load(grad + at, mask=r < rows, other=0.0)
    power = power_below(tl.max(tl.abs(grads)))
    grads = (grads * (1.0 / tl.maximum(power, 2.0**-126))).to(rise.dtype.element_ty)
    if share == 0:
        tl.store(x_rounded + at, tokens, mask=r < rows)
        tl.store(grad_rounded + at, grads, mask=r < rows)
        tl.store(powers + model * tl.num_programs(0) + tl.program_id(0), power)
    rise += model * (weight_model * 8)
    fall += model * (weight_model * 8)
    rise_bias += model * (rise_bias_model * 4)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, SHARE, BLOCK, num_stages=STAGES):
        column = share * SHARE + first + c
        up = tl.load(rise + w[:, None] * HIDDEN + column[None, :])
        hidden = product(tokens, up, PRECISION) + tl.load(rise_bias + column)[None, :]
        down = tl.load(fall + column[:, None] * WIDTH + w[None, :])
        pulls = tl.where(hidden > 0, product(grads, tl.trans(down), PRECISION), 0.0)
        found += product(pulls.to(up.dtype), tl.trans(up), PRECISION)
    place = (share * tl.num_programs(2) + model) * rows * WIDTH
    tl.store(x_grad + place + r * WIDTH + w[None, :], found * power, mask=r < rows)


@triton.jit
def weights_backward(
    grad, x_rounded, grad_rounded, powers, rise, fall, rise_bias, sums, rows, blocks, weight_model, rise_bias_model,
    HIDDEN: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    POWER_ROWS: tl.constexpr, POWERS: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums (shares, M, numbers): gradients of rise, rise_bias, fall and fall_bias one after the other.

    Hidden numbers stand as (hidden, rows), so that they are the left factor of the products that sum over rows.
    """
    model = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w = tl.arange(0, WIDTH)
    t = tl.arange(0, ROWS)
    x_rounded += model * rows * WIDTH
    grad_rounded += model * rows * WIDTH
    powers += model * blocks
    known = tl.arange(0, POWERS)
    largest = tl.max(tl.load(powers + known, mask=known < blocks, other=0.0))
    inverse = 1.0 / tl.maximum(largest, 2.0**-126)
    up = tl.load(rise + model * (weight_model * 8) + column[:, None] + w[None, :] * HIDDEN)
    bias = tl.load(rise_bias + model * (rise_bias_model * 4) + column)[:, None]
    down = tl.load(fall + model * (weight_model * 8) + column[:, None] * WIDTH + w[None, :])
    rise_sum = tl.zeros((BLOCK, WIDTH), tl.float32)
    fall_sum = tl.zeros((BLOCK, WIDTH), tl.float32)
    bias_sum = tl.zeros((BLOCK, ROWS), tl.float32)
    for first in tl.range(0, SHARE, ROWS, num_stages=STAGES):
        r = share * SHARE + first + t
        at = r[:, None] * WIDTH + w[None, :]
        tokens = tl.load(x_rounded + at, mask=(r < rows)[:, None], other=0.0)
        grads = tl.load(grad_rounded + at, mask=(r < rows)[:, None], other=0.0)
        block = (share * SHARE + first) // POWER_ROWS
        relative = tl.load(powers + block, mask=block < blocks, other=0.0) * inverse
        hidden = product(up, tl.trans(tokens), PRECISION) + bias
        pulls = tl.where(hidden > 0, product(down, tl.trans(grads), PRECISION) * relative, 0.0)
        bias_sum += pulls
        fall_sum += product((tl.maximum(hidden, 0.0) * relative).to(grads.dtype), grads, PRECISION)
        rise_sum += product(pulls.to(tokens.dtype), tokens, PRECISION)
    NUMBERS: tl.constexpr = (2 * WIDTH + 1) * HIDDEN + WIDTH
    sums += (share * tl.num_programs(2) + model) * NUMBERS
    tl.store(sums + w[None, :] * HIDDEN + column[:, None], rise_sum * largest)
    tl.store(sums + WIDTH * HIDDEN + column, tl.sum(bias_sum, axis=1) * largest)
    tl.store(sums + (WIDTH + 1) * HIDDEN + column[:, None] * WIDTH + w[None, :], fall_sum * largest)
    if tl.program_id(0) == 0:
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.range(0, SHARE, ROWS):
            r = (share * SHARE + first + t)[:, None]
            total += tl.load(grad + model * rows * WIDTH + r * WIDTH + w[None, :], mask=r < rows, other=0.0)
        tl.store(sums + (2 * WIDTH + 1) * HIDDEN + w, tl.sum(total, axis=0))
