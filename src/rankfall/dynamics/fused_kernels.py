"""Kernels that carry split tokens through whole layers, for Triton to compile; imported on machines that have it.

`whole` keeps a short sequence in one program's registers for as many layers as wanted; `band_kernels` are for long
ones.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def row_through(row, map_):
    """A row vector times a matrix."""
    return tl.sum(row[:, None] * map_, axis=0)


@triton.jit
def normal_scales(common, added, top, wrong, size, ratio):
    """Common part, log size and log ratio in normal form; see `split.normal_form`. `wrong` is zero, or no number."""
    common += added
    largest = tl.max(tl.abs(common), axis=0)
    # What is left of a sum that cancelled is rounding; 2^-46 is 64 times the rounding of float64.
    kept = (largest > 1.4210854715202004e-14 * tl.max(tl.abs(added), axis=0)).to(tl.float64)
    common, largest = common * kept, largest * kept
    ratio += tl.log(top)
    growth = tl.log(largest)
    growth = tl.where(growth > ratio, growth, ratio) + wrong
    growth = tl.where(growth == -float("inf"), 0.0, growth)
    unit = tl.exp(growth)
    return common / tl.where(unit == 0.0, 5e-324, unit), size + growth, ratio - growth


@triton.jit
def log_spreads(common, mean, squares, size, ratio, n):
    """log mu and log relative mu from the residual's mean and squared deviations; see `Split.log_spread`."""
    apart = ratio + 0.5 * tl.log(squares)
    centre = common + tl.exp(ratio) * mean
    total = tl.sum(centre * centre, axis=0) * n + tl.exp(2.0 * apart)
    length = 0.5 * tl.log(tl.where(total < 2.2250738585072014e-308, 2.2250738585072014e-308, total))
    relative = apart - length
    relative = tl.where(relative > 0.0, 0.0, relative)
    return size + apart, tl.where(total == 0.0, -float("inf"), relative)


@triton.jit
def _grown(x, factor):
    """x (e^(factor x) - 1) / (factor x), to the last digits for every factor x of order one and below."""
    power = tl.exp(factor * x)
    return x * tl.where(power == 1.0, 1.0, (power - 1.0) / tl.log(tl.where(power == 1.0, 2.0, power)))


@triton.jit
def _row(tile, chosen):
    """The one row of a tile that is chosen."""
    return tl.sum(tl.where(chosen[:, None], tile, 0.0), axis=0)


@triton.jit
def _longest(tile):
    return tl.sqrt(tl.max(tl.sum(tile * tile, axis=1), axis=0))


@triton.jit
def largest_entry(tile):
    return tl.max(tl.max(tl.abs(tile), axis=1), axis=0)


@triton.jit
def _alike(query, key, value, beyond, size, ratio, balance, tokens, row_in):
    """All see all: what each row has beyond the first, the mean, the former's log scale, whether this form is right.

    `split_attention._nearly_alike` and `_linear` in one: expm1(x) is divided by what x is multiplied with, so that
    nothing underflows however small the scores.
    """
    small, shrunk = tl.exp(size + ratio), tl.exp(2.0 * (size + ratio))
    strength = _longest(query) * _longest(key)
    most = tl.maximum(tl.maximum(largest_entry(query), largest_entry(key)), largest_entry(value))
    begin = _row(query, tokens == 0)
    score = tl.sum(key * (small * (beyond + small * begin))[None, :], axis=1)
    score = tl.where(row_in, score, -float("inf"))
    best = tl.max(score, axis=0)
    powers = tl.exp(score - best)
    log_weight = score - best - tl.log(tl.sum(powers, axis=0))
    place = tl.min(tl.where(score == best, tokens, 2147483647), axis=0)
    is_top = tokens == place
    log_tails = tl.where(is_top, -float("inf"), log_weight)
    log_tail = tl.max(log_tails, axis=0)
    log_tail = tl.where(log_tail == -float("inf"), 0.0, log_tail)
    tails, tail = tl.exp(log_tails - log_tail), tl.exp(log_tail)
    own = _row(value, is_top)
    plain = tl.sum(balance[:, None] * value, axis=0)
    flat = tl.max(tl.where(row_in, tl.abs(score), 0.0), axis=0) < 1.0
    held = tl.where(row_in, tl.where(flat, score, 0.0), 0.0)
    excess = tl.where(row_in, _grown(held, 1.0), 0.0)
    total = tl.sum(tl.where(row_in, tl.exp(held), 0.0), axis=0)
    flat_mean = plain + tl.sum(excess[:, None] * (value - plain[None, :]), axis=0) / total
    value = value - own[None, :]
    offset = tail * tl.sum(tails[:, None] * value, axis=0)
    mean = tl.where(flat, flat_mean, own + offset)
    value = value - offset[None, :]
    query = tl.where(row_in[:, None], query - begin[None, :], 0.0)
    key = key - _row(key, is_top)[None, :]
    bound = shrunk * strength
    alike = bound < 150.0
    factor = tl.where(alike, shrunk, 0.0)
    rows = _grown(tl.dot(query, tl.trans(key), out_dtype=tl.float64), factor)
    weighted = rows * tails[None, :]
    total = 1.0 + tail * factor * tl.sum(weighted, axis=1)
    mixed = tl.dot(rows, tails[:, None] * value, out_dtype=tl.float64)
    # Rounding is in the values and, for keys that agree, in scores that should be smaller still.
    apart = tails * (tl.max(tl.abs(value), axis=1) + 2.220446049250313e-16)
    rounded = tl.sum(tl.abs(weighted), axis=1) + strength * tl.sum((factor * rows + 1.0) * apart[None, :], axis=1)
    rounded = tl.max(tl.where(row_in, rounded, 0.0), axis=0) * most
    lost = (bound >= 1e-17) & (largest_entry(mixed) < 1e-12 * rounded)
    return mixed / total[:, None], mean, log_tail, alike & (lost == 0)


@triton.jit
def _apart(query, key, value, beyond, size, ratio, moving, tokens, row_in, open_pairs, log_strength):
    """Rows that see different sets, by a plain softmax; and whether no key is shared and no digit lost."""
    small = tl.exp(size + ratio)
    score = tl.dot(beyond[None, :] + small * query, tl.trans(small * key), out_dtype=tl.float64)
    score = tl.where(open_pairs, score, -float("inf"))
    best = tl.max(score, axis=1)
    weights = tl.exp(score - tl.where(best == -float("inf"), 0.0, best)[:, None])
    total = tl.sum(weights, axis=1)
    weights = weights / tl.where(total == 0.0, 1.0, total)[:, None]
    mixed = tl.dot(weights, value, out_dtype=tl.float64)
    shared = tl.max(tl.where(row_in, tl.min(tl.where(row_in[:, None], weights, 2.0), axis=0), 0.0), axis=0)
    begin = _row(mixed, tokens == 0)
    differs = largest_entry(tl.where(row_in[:, None], mixed - begin[None, :], 0.0))
    rounded = tl.max(tl.where(row_in, tl.sum(weights * moving[None, :], axis=1), 0.0), axis=0) * largest_entry(value)
    # Scores that nothing can see leave plain averages, which need no such care.
    flat = 2.0 * size + ratio + log_strength < -39.14394658089878
    return mixed, flat | ((shared <= 0.5) & (differs >= 1e-12 * rounded))


@triton.jit(
    do_not_specialize=["layers"],
    do_not_specialize_on_alignment=["log_size", "log_ratio", "common", "residual", "spreads", "states", "done"],
)
def whole(
    residual, common, log_size, log_ratio, query_map, key_map, value_map, words, reference,
    out_residual, out_common, out_scalars, spreads, slots, states, done,
    n, d, rank, query_stride, key_stride, value_stride, layers, log_strength,
    COMPLETE: tl.constexpr, KEPT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, RANK: tl.constexpr,
):  # fmt: skip
    """One sample through `layers` layers of the same weights, in registers; how many were right goes to `done`.

    `spreads` (layers, 2, b) gets log mu and log relative mu of every layer; with KEPT, `states` gets the state behind
    every layer that has a slot, at this slot: residual, common part, two scales.
    """
    sample, samples = tl.program_id(0).to(tl.int64), tl.num_programs(0).to(tl.int64)
    rows, columns, ranks = tl.arange(0, ROWS), tl.arange(0, WIDTH), tl.arange(0, RANK)
    row_in, column_in, rank_in = rows < n, columns < d, ranks < rank
    inside = row_in[:, None] & column_in[None, :]
    tile = rows[:, None] * d + columns[None, :]
    x = tl.load(residual + sample * n * d + tile, mask=inside, other=0.0)
    m = tl.load(common + sample * d + columns, mask=column_in, other=0.0)
    size, ratio = tl.load(log_size + sample), tl.load(log_ratio + sample)
    weight = tl.load(reference + sample * n + rows, mask=row_in, other=0.0)
    thin_maps = columns[:, None] * rank + ranks[None, :]
    thin_in = column_in[:, None] & rank_in[None, :]
    square_in = column_in[:, None] & column_in[None, :]
    query_map += sample * query_stride + thin_maps
    key_map += sample * key_stride + thin_maps
    value_map += sample * value_stride + columns[:, None] * d + columns[None, :]
    if COMPLETE:
        balance = tl.where(row_in, 1.0 / n - weight, 0.0)
    else:
        # Of 64 bits like all else: tile products in float64 take nothing that was loaded as a smaller type.
        word = tl.load(words + rows * 2, mask=row_in, other=0)[:, None]
        open_pairs = ((word >> rows.to(tl.int64)[None, :]) & 1) != 0
        moving = tl.where(row_in & (weight < 1.0), 1.0, 0.0)
    layer, going = 0, 1
    while (going != 0) & (layer < layers):
        mapping = tl.load(query_map, mask=thin_in, other=0.0)
        beyond = tl.exp(size) * row_through(m, mapping)
        query = tl.dot(x, mapping, out_dtype=tl.float64)
        key = tl.dot(x, tl.load(key_map, mask=thin_in, other=0.0), out_dtype=tl.float64)
        mapping = tl.load(value_map, mask=square_in, other=0.0)
        value = tl.dot(x, mapping, out_dtype=tl.float64)
        new = row_through(m, mapping)
        if COMPLETE:
            mixed, mean, log_tail, right = _alike(query, key, value, beyond, size, ratio, balance, rows, row_in)
            new += tl.exp(ratio) * mean
            new_ratio = 2.0 * size + 3.0 * ratio + log_tail
        else:
            mixed, right = _apart(
                query, key, value, beyond, size, ratio, moving, rows, row_in, open_pairs, log_strength
            )
            new_ratio = ratio
        moved = tl.sum(weight[:, None] * mixed, axis=0)
        mixed = tl.where(inside, mixed - moved[None, :], 0.0)
        top = largest_entry(mixed)
        # What is not finite anywhere must show everywhere: maxima alone would pass over it.
        wrong = 0.0 * tl.sum(tl.sum(mixed, axis=1), axis=0)
        new, new_size, new_ratio = normal_scales(new, tl.exp(new_ratio) * moved, top + wrong, wrong, size, new_ratio)
        going = (right & (new_size <= 300.0)).to(tl.int32)
        if going != 0:
            x = mixed / tl.where(top == 0.0, 5e-324, top)
            m, size, ratio = new, new_size, new_ratio
            mean = tl.sum(x, axis=0) / n
            off = tl.where(inside, x - mean[None, :], 0.0)
            log_mu, relative = log_spreads(m, mean, tl.sum(tl.sum(off * off, axis=1), axis=0), size, ratio, n)
            tl.store(spreads + 2 * layer * samples + sample, log_mu)
            tl.store(spreads + (2 * layer + 1) * samples + sample, relative)
            if KEPT:
                slot = tl.load(slots + layer)
                place = states + (slot * samples + sample) * (n * d + d + 2)
                tl.store(place + tile, x, mask=inside & (slot >= 0))
                tl.store(place + n * d + columns, m, mask=column_in & (slot >= 0))
                tl.store(place + n * d + d, size, mask=slot >= 0)
                tl.store(place + n * d + d + 1, ratio, mask=slot >= 0)
            layer += 1
    tl.store(out_residual + sample * n * d + tile, x, mask=inside)
    tl.store(out_common + sample * d + columns, m, mask=column_in)
    tl.store(out_scalars + sample, size)
    tl.store(out_scalars + samples + sample, ratio)
    tl.store(done + sample, layer * 1.0)
