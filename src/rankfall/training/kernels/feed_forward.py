"""The feed-forward y = relu(x R + a) F + b of every model, its hidden numbers never in memory: gradients compute them again.

Axes: M models, rows (tokens of all sequences), width, hidden. A program of `rows_forward` and `rows_backward` keeps
some rows of one model and goes over (a share of) the hidden axis; one of `weights_backward` keeps some hidden
columns and goes over a share of the rows, so that its sums stay in registers. Shares are added up afterwards in a fixed
order: two runs give the same bits.

Weights are parts of a model's row of parameters: `*_model` is the distance between models in units of four numbers,
which tells the compiler that 16 bytes can be read at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankfall.training.kernels.tiles import product


@triton.jit
def rows_forward(
    x, rise, rise_bias, fall, fall_bias, out, rows, rise_model, rise_bias_model, fall_model, fall_bias_model,
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
    rise += model * (rise_model * 4)
    rise_bias += model * (rise_bias_model * 4)
    fall += model * (fall_model * 4)
    answer = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, SHARE, BLOCK, num_stages=STAGES):
        column = share * SHARE + first + c
        up = tl.load(rise + w[:, None] * HIDDEN + column[None, :])
        hidden = product(tokens, up, PRECISION) + tl.load(rise_bias + column)[None, :]
        down = tl.load(fall + column[:, None] * WIDTH + w[None, :])
        answer += product(tl.maximum(hidden, 0.0), down, PRECISION)
    answer += tl.load(fall_bias + model * (fall_bias_model * 4) + w, mask=(w >= 0) & (share == 0), other=0.0)[None, :]
    place = (share * tl.num_programs(2) + model) * rows * WIDTH
    tl.store(out + place + r * WIDTH + w[None, :], answer, mask=r < rows)


@triton.jit
def rows_backward(
    grad, x, rise, rise_bias, fall, x_grad, rows, rise_model, rise_bias_model, fall_model,
    HIDDEN: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """x_grad (shares, M, rows, width)."""
    model = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    w = tl.arange(0, WIDTH)
    c = tl.arange(0, BLOCK)
    at = model * rows * WIDTH + r * WIDTH + w[None, :]
    tokens = tl.load(x + at, mask=r < rows, other=0.0)
    grads = tl.load(grad + at, mask=r < rows, other=0.0)
    rise += model * (rise_model * 4)
    rise_bias += model * (rise_bias_model * 4)
    fall += model * (fall_model * 4)
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, SHARE, BLOCK, num_stages=STAGES):
        column = share * SHARE + first + c
        up = tl.load(rise + w[:, None] * HIDDEN + column[None, :])
        hidden = product(tokens, up, PRECISION) + tl.load(rise_bias + column)[None, :]
        down = tl.load(fall + column[None, :] * WIDTH + w[:, None])
        pulls = tl.where(hidden > 0, product(grads, down, PRECISION), 0.0)
        back = tl.load(rise + w[None, :] * HIDDEN + column[:, None])
        found += product(pulls, back, PRECISION)
    place = (share * tl.num_programs(2) + model) * rows * WIDTH
    tl.store(x_grad + place + r * WIDTH + w[None, :], found, mask=r < rows)


@triton.jit
def weights_backward(
    grad, x, rise, rise_bias, fall, sums, rows, rise_model, rise_bias_model, fall_model,
    HIDDEN: tl.constexpr, SHARE: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums (shares, M, numbers): gradients of rise, rise_bias, fall and fall_bias one after the other.

    Hidden numbers stand as (hidden, rows), so that they are the left factor of the products that sum over rows.
    """
    model = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    w = tl.arange(0, WIDTH)
    t = tl.arange(0, ROWS)
    x += model * rows * WIDTH
    grad += model * rows * WIDTH
    up = tl.load(rise + model * (rise_model * 4) + column[:, None] + w[None, :] * HIDDEN)
    bias = tl.load(rise_bias + model * (rise_bias_model * 4) + column)[:, None]
    down = tl.load(fall + model * (fall_model * 4) + column[:, None] * WIDTH + w[None, :])
    rise_sum = tl.zeros((BLOCK, WIDTH), tl.float32)
    fall_sum = tl.zeros((BLOCK, WIDTH), tl.float32)
    bias_sum = tl.zeros((BLOCK, ROWS), tl.float32)
    for first in tl.range(0, SHARE, ROWS, num_stages=STAGES):
        r = share * SHARE + first + t
        across = r[None, :] * WIDTH + w[:, None]
        tokens = tl.load(x + across, mask=(r < rows)[None, :], other=0.0)
        grads = tl.load(grad + across, mask=(r < rows)[None, :], other=0.0)
        hidden = product(up, tokens, PRECISION) + bias
        pulls = tl.where(hidden > 0, product(down, grads, PRECISION), 0.0)
        bias_sum += pulls
        along = r[:, None] * WIDTH + w[None, :]
        fall_sum += product(tl.maximum(hidden, 0.0), tl.load(grad + along, mask=(r < rows)[:, None], other=0.0), PRECISION)
        rise_sum += product(pulls, tl.load(x + along, mask=(r < rows)[:, None], other=0.0), PRECISION)
    NUMBERS: tl.constexpr = (2 * WIDTH + 1) * HIDDEN + WIDTH
    sums += (share * tl.num_programs(2) + model) * NUMBERS
    tl.store(sums + w[None, :] * HIDDEN + column[:, None], rise_sum)
    tl.store(sums + WIDTH * HIDDEN + column, tl.sum(bias_sum, axis=1))
    tl.store(sums + (WIDTH + 1) * HIDDEN + column[:, None] * WIDTH + w[None, :], fall_sum)
    if tl.program_id(0) == 0:
        total = tl.zeros((ROWS, WIDTH), tl.float32)
        for first in tl.range(0, SHARE, ROWS):
            r = (share * SHARE + first + t)[:, None]
            total += tl.load(grad + r * WIDTH + w[None, :], mask=r < rows, other=0.0)
        tl.store(sums + (2 * WIDTH + 1) * HIDDEN + w, tl.sum(total, axis=0))
