"""The kernels behind `kernels`, for Triton to compile; imported on machines that have it."""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _gathered(tile, weight, row_in, column_in, parts, place, stride, d, columns):
    """Write one block's sum under the reference, largest and smallest of every coordinate."""
    inside = row_in[:, None] & column_in[None, :]
    total = tl.sum(tl.where(inside, tile * weight[:, None], 0.0), axis=0)
    largest = tl.max(tl.where(inside, tile, -float("inf")), axis=0)
    smallest = tl.min(tl.where(inside, tile, float("inf")), axis=0)
    tl.store(parts + place * d + columns, total, mask=column_in)
    tl.store(parts + stride + place * d + columns, largest, mask=column_in)
    tl.store(parts + 2 * stride + place * d + columns, smallest, mask=column_in)


@triton.jit
def gather(residual, reference, parts, n, d, blocks, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The three numbers of every block of a residual that is there."""
    block, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    row_in, column_in = rows < n, columns < d
    place = residual + (sample * n + rows[:, None]) * d + columns[None, :]
    tile = tl.load(place, mask=row_in[:, None] & column_in[None, :], other=0.0)
    weight = tl.load(reference + sample * n + rows, mask=row_in, other=0.0)
    stride = tl.num_programs(1).to(tl.int64) * blocks * d
    _gathered(tile, weight, row_in, column_in, parts, sample * blocks + block, stride, d, columns)


@triton.jit
def fold(parts, folded, blocks, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The three numbers of every ROWS blocks, as if they were one."""
    group, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = group * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    column_in = columns < d
    inside = (rows < blocks)[:, None] & column_in[None, :]
    stride = tl.num_programs(1).to(tl.int64) * blocks * d
    place = parts + (sample * blocks + rows[:, None]) * d + columns[None, :]
    there = folded + (sample * tl.num_programs(0) + group) * d + columns
    shorter = tl.num_programs(1).to(tl.int64) * tl.num_programs(0) * d
    tl.store(there, tl.sum(tl.load(place, mask=inside, other=0.0), axis=0), mask=column_in)
    largest = tl.max(tl.load(place + stride, mask=inside, other=-float("inf")), axis=0)
    tl.store(there + shorter, largest, mask=column_in)
    smallest = tl.min(tl.load(place + 2 * stride, mask=inside, other=float("inf")), axis=0)
    tl.store(there + 2 * shorter, smallest, mask=column_in)


@triton.jit
def finish(
    parts,
    common,
    log_size,
    log_ratio,
    made,
    moved,
    scalars,
    batch,
    blocks,
    d,
    ROWS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    """From the blocks' numbers the new common part, what to take off the residual, and the scales; of one sample."""
    sample = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    column_in = columns < d
    total = tl.zeros([WIDTH], tl.float64)
    largest = tl.full([WIDTH], -float("inf"), tl.float64)
    smallest = tl.full([WIDTH], float("inf"), tl.float64)
    stride = tl.num_programs(0).to(tl.int64) * blocks * d
    first = 0
    while first < blocks:
        rows = first + tl.arange(0, ROWS)
        inside = (rows < blocks)[:, None] & column_in[None, :]
        place = parts + (sample * blocks + rows[:, None]) * d + columns[None, :]
        total += tl.sum(tl.load(place, mask=inside, other=0.0), axis=0)
        largest = tl.maximum(largest, tl.max(tl.load(place + stride, mask=inside, other=-float("inf")), axis=0))
        smallest = tl.minimum(smallest, tl.min(tl.load(place + 2 * stride, mask=inside, other=float("inf")), axis=0))
        first += ROWS
    tl.store(moved + sample * d + columns, total, mask=column_in)
    # What is not finite anywhere must show everywhere: maxima alone would pass over it.
    wrong = 0.0 * tl.sum(total, axis=0)
    apart = tl.where(column_in, tl.maximum(largest - total, total - smallest), 0.0)
    top = tl.max(apart, axis=0) + wrong
    ratio = tl.load(log_ratio + sample)
    added = tl.exp(ratio) * total
    new = tl.load(common + sample * d + columns, mask=column_in, other=0.0) + added
    size = tl.max(tl.abs(new), axis=0)
    # What is left of a sum that cancelled is rounding; 2^-46 is 64 times the rounding of float64.
    kept = (size > 1.4210854715202004e-14 * tl.max(tl.abs(added), axis=0)).to(tl.float64)
    new, size = new * kept, size * kept
    ratio = ratio + tl.log(top)
    growth = tl.log(size)
    growth = tl.where(growth > ratio, growth, ratio) + wrong
    growth = tl.where(growth == -float("inf"), 0.0, growth)
    unit = tl.exp(growth)
    unit = tl.where(unit == 0.0, 5e-324, unit)
    tl.store(made + sample * d + columns, new / unit, mask=column_in)
    tl.store(scalars + sample, tl.load(log_size + sample) + growth)
    tl.store(scalars + batch + sample, ratio - growth)
    tl.store(scalars + 2 * batch + sample, tl.where(top == 0.0, 5e-324, top))


@triton.jit
def scale(residual, moved, top, n, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Take off what is moved to the common part and divide by the largest entry, in place."""
    block, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < n)[:, None] & (columns < d)[None, :]
    place = residual + (sample * n + rows[:, None]) * d + columns[None, :]
    off = tl.load(moved + sample * d + columns, mask=columns < d, other=0.0)
    tile = tl.load(place, mask=inside, other=0.0)
    tl.store(place, (tile - off[None, :]) / tl.load(top + sample), mask=inside)


@triton.jit
def along(
    residual, maps, common_query, small, words, reference, out, parts, told, n, d, shared,
    step, lower, blocks, block, reach, rank, out_width, columns,
    SCORED: tl.constexpr, WHOLE: tl.constexpr, BLOCK: tl.constexpr, REACH: tl.constexpr, WIDTH: tl.constexpr,
    RANK: tl.constexpr, OUT: tl.constexpr,
):  # fmt: skip
    """A block of queries against the keys in its reach: softmax attention of one head, or plain averaging.

    Tokens of one residue class stand `step` apart. `maps` are query, key and value maps side by side (d, 2 r + v), or
    the value map alone. `told` gets of every block the largest value in its reach; where a block is the WHOLE
    sequence, three numbers of every sample: the most that all rows give to one key, the largest difference of a row
    from the first, and the size of what may be rounded.
    """
    number, residue, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own, seen, across = tl.arange(0, BLOCK), tl.arange(0, REACH), tl.arange(0, WIDTH)
    wide = tl.arange(0, OUT)
    query_rows = (number * block + own) * step + residue
    key_places = number * block - lower + seen
    key_rows = key_places * step + residue
    query_in = (own < block) & (query_rows < n)
    key_in = (seen < reach) & (key_places >= 0) & (key_rows < n)
    width_in, out_in = across < d, wide < out_width
    tokens, maps = residual + sample * n * d, maps + sample * shared
    x = tl.load(tokens + key_rows[:, None] * d + across[None, :], mask=key_in[:, None] & width_in[None, :], other=0.0)
    # Of 64 bits like all else: tile products in float64 take nothing that was loaded as a smaller type.
    pairs = words + ((residue * blocks + number) * block + own) * 2
    low = tl.load(pairs, mask=own < block, other=0)[:, None]
    high = tl.load(pairs + 1, mask=own < block, other=0)[:, None]
    bit = (seen % 64).to(tl.int64)[None, :]
    open_pairs = ((tl.where(seen[None, :] < 64, low, high) >> bit) & 1) != 0
    first = maps + across[:, None] * columns
    if SCORED:
        ranks = tl.arange(0, RANK)
        rank_in = ranks < rank
        map_in = width_in[:, None] & rank_in[None, :]
        factor = tl.load(small + sample)
        y = tl.load(
            tokens + query_rows[:, None] * d + across[None, :], mask=query_in[:, None] & width_in[None, :], other=0.0
        )
        query = tl.dot(y, tl.load(first + ranks[None, :], mask=map_in, other=0.0), out_dtype=tl.float64)
        key = tl.dot(x, tl.load(first + rank + ranks[None, :], mask=map_in, other=0.0), out_dtype=tl.float64)
        beyond = tl.load(common_query + sample * rank + ranks, mask=rank_in, other=0.0)
        query, key = beyond[None, :] + factor * query, factor * key
        score = tl.dot(query, tl.trans(key), out_dtype=tl.float64)
        score = tl.where(open_pairs, score, -float("inf"))
        best = tl.max(score, axis=1)
        weights = tl.exp(score - tl.where(best == -float("inf"), 0.0, best)[:, None])
        first += 2 * rank
    else:
        weights = open_pairs.to(tl.float64)
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    value_map = tl.load(first + wide[None, :], mask=width_in[:, None] & out_in[None, :], other=0.0)
    if SCORED:
        value = tl.dot(x, value_map, out_dtype=tl.float64)
        mixed = tl.dot(weights, value, out_dtype=tl.float64)
        largest = tl.max(tl.max(tl.abs(value), axis=1), axis=0)
        if WHOLE:
            at_least = tl.min(tl.where(query_in[:, None], weights, 2.0), axis=0)
            tl.store(told + sample, tl.max(tl.where(key_in, at_least, 0.0), axis=0))
            origin = tl.sum(tl.where((own == 0)[:, None], mixed, 0.0), axis=0)
            apart = tl.where(query_in[:, None] & out_in[None, :], tl.abs(mixed - origin[None, :]), 0.0)
            tl.store(told + tl.num_programs(2) + sample, tl.max(tl.max(apart, axis=1), axis=0))
            moving = (tl.load(reference + sample * n + key_rows, mask=key_in, other=1.0) < 1.0).to(tl.float64)
            rounded = tl.max(tl.where(query_in, tl.sum(weights * moving[None, :], axis=1), 0.0), axis=0)
            tl.store(told + 2 * tl.num_programs(2) + sample, rounded * largest)
        else:
            tl.store(told + (sample * tl.num_programs(1) + residue) * blocks + number, largest)
    else:
        mixed = tl.dot(tl.dot(weights, x, out_dtype=tl.float64), value_map, out_dtype=tl.float64)
    place = out + (sample * n + query_rows[:, None]) * out_width + wide[None, :]
    tl.store(place, mixed, mask=query_in[:, None] & out_in[None, :])
    weight = tl.load(reference + sample * n + query_rows, mask=query_in, other=0.0)
    stride = tl.num_programs(2).to(tl.int64) * tl.num_programs(1) * blocks * out_width
    at = (sample * tl.num_programs(1) + residue) * blocks + number
    _gathered(mixed, weight, query_in, out_in, parts, at, stride, out_width, wide)


@triton.jit
def deviations(residual, parts, n, d, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """Of every block of rows: mean, squared deviations from it, and of how many rows; (programs, 3, WIDTH)."""
    block, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows, columns = block * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    inside = (rows < n)[:, None] & (columns < d)[None, :]
    tile = tl.load(residual + (sample * n + rows[:, None]) * d + columns[None, :], mask=inside, other=0.0)
    many = tl.sum((rows < n).to(tl.float64), axis=0)
    mean = tl.sum(tile, axis=0) / many
    off = tl.where(inside, tile - mean[None, :], 0.0)
    there = parts + (sample * tl.num_programs(0) + block) * 3 * WIDTH + columns
    tl.store(there, mean)
    tl.store(there + WIDTH, tl.sum(off * off, axis=0))
    tl.store(there + 2 * WIDTH, tl.zeros([WIDTH], tl.float64) + many)


@triton.jit
def spread(
    parts, common, log_size, log_ratio, out, blocks, n, d, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """log mu and log relative mu of one sample from its blocks' deviations; see `Split.log_spread`."""
    sample = tl.program_id(0).to(tl.int64)
    columns, lines = tl.arange(0, WIDTH), tl.arange(0, ROWS)
    column_in = columns < d
    parts += sample * blocks * 3 * WIDTH
    mean = tl.zeros([WIDTH], tl.float64)
    first = 0
    while first < blocks:
        rows = first + lines
        inside = (rows < blocks)[:, None]
        place = parts + rows[:, None] * 3 * WIDTH + columns[None, :]
        many = tl.load(place + 2 * WIDTH, mask=inside, other=0.0)
        mean += tl.sum(many * tl.load(place, mask=inside, other=0.0), axis=0) / n
        first += ROWS
    squares = tl.zeros([WIDTH], tl.float64)
    first = 0
    while first < blocks:
        rows = first + lines
        inside = (rows < blocks)[:, None]
        place = parts + rows[:, None] * 3 * WIDTH + columns[None, :]
        many = tl.load(place + 2 * WIDTH, mask=inside, other=0.0)
        off = tl.load(place, mask=inside, other=0.0) - mean[None, :]
        squares += tl.sum(tl.load(place + WIDTH, mask=inside, other=0.0) + many * off * off, axis=0)
        first += ROWS
    ratio = tl.load(log_ratio + sample)
    width = ratio + 0.5 * tl.log(tl.sum(squares, axis=0))
    centre = tl.load(common + sample * d + columns, mask=column_in, other=0.0) + tl.exp(ratio) * mean
    total = tl.sum(tl.where(column_in, centre * centre, 0.0), axis=0) * n + tl.exp(2.0 * width)
    length = 0.5 * tl.log(tl.where(total < 2.2250738585072014e-308, 2.2250738585072014e-308, total))
    relative = width - length
    relative = tl.where(relative > 0.0, 0.0, relative)
    relative = tl.where(total == 0.0, -float("inf"), relative)
    tl.store(out + sample, tl.load(log_size + sample) + width)
    tl.store(out + tl.num_programs(0) + sample, relative)
