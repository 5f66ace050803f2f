"""Products with weights of (width, columns), width small: several at once, with biases, sums over rows in shares.

Axes: P parts (query, key and value, or one), M models, rows, width, columns. Tensors of tokens are contiguous:
(M, rows, width) narrow, (P, M, rows, columns) wide. Weights lie at w * W_STEP + c * C_STEP, one of the two being 1;
`*_model` is the distance between models, `*_part` between parts, both in units of four numbers, which tells the
compiler that 16 bytes can be read at once.
"""

from __future__ import annotations

import triton
import triton.language as tl

from rankfall.training.kernels.tiles import product


@triton.jit
def power_below(x):
    """The largest power of two that is not above a positive float32; zero for zero and for the least of numbers."""
    return (x.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True)


@triton.jit
def widen(
    x, weight, bias, out, rows, weight_model, weight_part, bias_model, bias_part,
    COLUMNS: tl.constexpr, SHARE: tl.constexpr, W_STEP: tl.constexpr, C_STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr, HALF: tl.constexpr, PARTS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out (P, M, rows, columns) = x @ weight + bias. x is scaled as gradients are, see `feed_forward`."""
    SHARES: tl.constexpr = COLUMNS // SHARE
    model = (tl.program_id(1) // PARTS).to(tl.int64)
    part = (tl.program_id(1) % PARTS).to(tl.int64)
    # Programs that share rows run next to each other and find them in the cache.
    share = tl.program_id(0) % SHARES
    r = ((tl.program_id(0) // SHARES) * ROWS + tl.arange(0, ROWS))[:, None]
    w = tl.arange(0, WIDTH)
    c = tl.arange(0, BLOCK)
    tokens = tl.load(x + model * rows * WIDTH + r * WIDTH + w[None, :], mask=r < rows, other=0.0)
    power = power_below(tl.max(tl.abs(tokens)))
    tokens = tokens * (1.0 / tl.maximum(power, 2.0**-126))
    if HALF:
        tokens = tokens.to(tl.float16)
    weight += model * (weight_model * 4) + part * (weight_part * 4)
    bias += model * (bias_model * 4) + part * (bias_part * 4)
    out += (part * (tl.num_programs(1) // PARTS) + model) * rows * COLUMNS
    for first in tl.range(0, SHARE, BLOCK, num_stages=STAGES):
        column = share * SHARE + first + c
        right = tl.load(weight + w[:, None] * W_STEP + column[None, :] * C_STEP)
        found = product(tokens, right.to(tokens.dtype), PRECISION) * power
        if HAS_BIAS:
            found += tl.load(bias + column)[None, :]
        tl.store(out + r * COLUMNS + column[None, :], found, mask=r < rows)


@triton.jit
def narrow(
    y, weight, out, rows, weight_model, weight_part,
    COLUMNS: tl.constexpr, W_STEP: tl.constexpr, C_STEP: tl.constexpr, PARTS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """out (M, rows, width) = the sum over parts of y @ weight transposed."""
    model = tl.program_id(1).to(tl.int64)
    models = tl.num_programs(1)
    r = (tl.program_id(0) * ROWS + tl.arange(0, ROWS))[:, None]
    w = tl.arange(0, WIDTH)
    c = tl.arange(0, BLOCK)
    weight += model * (weight_model * 4)
    y += model * rows * COLUMNS
    found = tl.zeros((ROWS, WIDTH), tl.float32)
    for first in tl.range(0, PARTS * COLUMNS, BLOCK, num_stages=STAGES):
        at = first + 0 * tl.program_id(1)  # a tensor, also for the interpreter
        part = (at // COLUMNS).to(tl.int64)
        column = tl.multiple_of(at % COLUMNS, BLOCK) + c
        left = tl.load(y + part * models * rows * COLUMNS + r * COLUMNS + column[None, :], mask=r < rows, other=0.0)
        right = tl.load(weight + part * (weight_part * 4) + w[None, :] * W_STEP + column[:, None] * C_STEP)
        found += product(left, right, PRECISION)
    tl.store(out + model * rows * WIDTH + r * WIDTH + w[None, :], found, mask=r < rows)


@triton.jit
def weight_sums(
    x, y, sums, rows, models,
    COLUMNS: tl.constexpr, SHARE: tl.constexpr, W_STEP: tl.constexpr, C_STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr, PARTS: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, STAGES: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """sums (shares, M, P, width * columns [+ columns]): x transposed @ y over a share of rows, and the sum of y."""
    BLOCKS: tl.constexpr = COLUMNS // BLOCK
    model = tl.program_id(2).to(tl.int64)
    share = tl.program_id(1)
    part = (tl.program_id(0) // BLOCKS).to(tl.int64)
    column = (tl.program_id(0) % BLOCKS) * BLOCK + tl.arange(0, BLOCK)
    w = tl.arange(0, WIDTH)
    t = tl.arange(0, ROWS)
    x += model * rows * WIDTH
    y += (part * models + model) * rows * COLUMNS
    found = tl.zeros((WIDTH, BLOCK), tl.float32)
    total = tl.zeros((ROWS, BLOCK), tl.float32)
    for first in tl.range(0, SHARE, ROWS, num_stages=STAGES):
        r = share * SHARE + first + t
        left = tl.load(x + r[None, :] * WIDTH + w[:, None], mask=(r < rows)[None, :], other=0.0)
        right = tl.load(y + r[:, None] * COLUMNS + column[None, :], mask=(r < rows)[:, None], other=0.0)
        found += product(left, right, PRECISION)
        if HAS_BIAS:
            total += right
    NUMBERS: tl.constexpr = (WIDTH + HAS_BIAS) * COLUMNS
    sums += ((share * models + model) * PARTS + part) * NUMBERS
    tl.store(sums + w[:, None] * W_STEP + column[None, :] * C_STEP, found)
    if HAS_BIAS:
        tl.store(sums + WIDTH * COLUMNS + column, tl.sum(total, axis=0))


@triton.jit
def add_shares(parts, out, numbers, SHARES: tl.constexpr, SIZE: tl.constexpr):
    """out (numbers) = the sum of parts (shares, numbers), one share after the other."""
    place = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    total = tl.load(parts + place, mask=place < numbers, other=0.0)
    for share in tl.static_range(1, SHARES):
        total += tl.load(parts + share * numbers.to(tl.int64) + place, mask=place < numbers, other=0.0)
    tl.store(out + place, total, mask=place < numbers)
