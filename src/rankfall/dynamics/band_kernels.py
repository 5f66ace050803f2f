"""Kernels of one layer along a band, for Triton to compile; imported on machines that have it.

`band` writes the residual as it comes, `settle` finds its normal form, which whoever reads the residual next applies
while reading.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import triton
import triton.language as tl

from rankfall.dynamics.fused_kernels import largest_entry, log_spreads, normal_scales, row_through

# Of what is carried per sample (`fused.Carried`): the places behind common part and offset.
_SIZE: tl.constexpr = tl.constexpr(0)
_RATIO: tl.constexpr = tl.constexpr(1)
_INVERSE: tl.constexpr = tl.constexpr(2)
_RIGHT: tl.constexpr = tl.constexpr(3)
_MU: tl.constexpr = tl.constexpr(4)
_RELATIVE: tl.constexpr = tl.constexpr(5)


@triton.jit
def begin(common, log_size, log_ratio, carried, d, WIDTH: tl.constexpr):
    """What is carried of a sample whose residual is in normal form."""
    sample, columns = tl.program_id(0).to(tl.int64), tl.arange(0, WIDTH)
    there = carried + sample * (2 * WIDTH + 8)
    tl.store(there + columns, tl.load(common + sample * d + columns, mask=columns < d, other=0.0))
    tl.store(there + WIDTH + columns, tl.zeros([WIDTH], tl.float64))
    tl.store(there + 2 * WIDTH + _SIZE, tl.load(log_size + sample))
    tl.store(there + 2 * WIDTH + _RATIO, tl.load(log_ratio + sample))
    tl.store(there + 2 * WIDTH + _INVERSE, 1.0)
    tl.store(there + 2 * WIDTH + _RIGHT, 1.0)


@triton.jit
def power_of_e(x):
    """e^x for x up to zero, to 0.9 of a last digit; zero below -708. What is no number stays none.

    The library's is right everywhere, and takes more than twice as many instructions for it.
    """
    # The sum with 1.5 * 2^52 has the nearest whole number of doublings in its last bits.
    shifted = x * 1.4426950408889634 + 6755399441055744.0
    doublings = shifted - 6755399441055744.0
    # log 2 in two parts, of which the first has so few digits that the product is exact.
    r = x - doublings * 0.693147180369123816490
    r = r - doublings * 1.90821492927058770002e-10
    # (e^r - 1 - r) / r^2 by Chebyshev interpolation for |r| <= log(2) / 2
    tail = 2.5100424157005067e-08 * r + 2.7620138719733994e-07
    tail = tail * r + 2.7557268378684192e-06
    tail = tail * r + 2.480152119021773e-05
    tail = tail * r + 0.00019841269863105968
    tail = tail * r + 0.0013888888917281794
    tail = tail * r + 0.008333333333330051
    tail = tail * r + 0.04166666666662399
    tail = tail * r + 0.16666666666666669
    tail = tail * r + 0.5000000000000001
    scale = ((shifted.to(tl.int64, bitcast=True) + 1023) << 52).to(tl.float64, bitcast=True)
    return tl.where(x < -708.0, 0.0, (1.0 + r * (1.0 + r * tail)) * scale)


@triton.jit
def _mixed_in_halves(query, near, far, near_in, far_in, span, BLOCK: tl.constexpr):
    """Softmax attention of BLOCK queries, of which number i sees the keys from i to i + span; span is at most BLOCK.

    The keys come in two halves of BLOCK. Of the two keys at one place of both halves a query sees only one, except at
    its own place where span is BLOCK: one tile of exponentials and one column serve both halves. Returns what is
    mixed, and the sums by which it is to be divided.
    """
    own, seen = tl.arange(0, BLOCK)[:, None], tl.arange(0, BLOCK)[None, :]
    score = tl.dot(query, tl.trans(near), out_dtype=tl.float64)
    beyond = tl.dot(query, tl.trans(far), out_dtype=tl.float64)
    is_near, is_own = seen >= own, seen == own
    last = tl.sum(tl.where(is_own, beyond, 0.0), axis=1)
    last = tl.where(far_in & (span == BLOCK), last, -float("inf"))
    open_near = near_in[None, :] & (seen <= own + span)
    open_far = far_in[None, :] & (seen + BLOCK <= own + span)
    score = tl.where(is_near, score, beyond)
    score = tl.where((is_near & open_near) | ((seen < own) & open_far), score, -float("inf"))
    best = tl.maximum(tl.max(score, axis=1), last)
    best = tl.where(best == -float("inf"), 0.0, best)
    weights, last = power_of_e(score - best[:, None]), power_of_e(last - best)
    mixed = tl.dot(tl.where(is_near, weights, 0.0), near, out_dtype=tl.float64)
    weights_far = tl.where(is_own, last[:, None], tl.where(is_near, 0.0, weights))
    return tl.dot(weights_far, far, mixed, out_dtype=tl.float64), tl.sum(weights, axis=1) + last


@triton.jit
def band(
    residual, carried, score_map, value_map, words, reference, out, parts,
    n, d, score_stride, value_stride, step, lower, block, reach,
    SCORED: tl.constexpr, EXACT: tl.constexpr, FILLED: tl.constexpr, HALVED: tl.constexpr, EVEN: tl.constexpr,
    BLOCK: tl.constexpr, REACH: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """A block of queries against the keys in its reach: softmax attention of one head, or plain averaging.

    Tokens of one residue class stand `step` apart. In what is written the residual is (w - offset) * inverse. Rows of
    attention sum to one, so that offset and inverse are applied to what is mixed, and to queries; of keys an offset
    changes only what is the same along a row. FILLED: every pair within the band is open; HALVED: and scored, BLOCK
    is block, and REACH twice that; EVEN: WIDTH is d.
    `parts` (programs, 4 WIDTH + 8) gets of the new residual the sum under the reference and the largest size; with
    EXACT also, of every coordinate, mean, largest and smallest, the squared deviations, and of how many rows.
    """
    number, residue, sample = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    own, seen, across = tl.arange(0, BLOCK), tl.arange(0, REACH), tl.arange(0, WIDTH)
    if EVEN:
        width_in = across < WIDTH
    else:
        width_in = across < d
    square = across[:, None] * d + across[None, :]
    square_in = width_in[:, None] & width_in[None, :]
    tokens, place = residual + sample * n * d, carried + sample * (2 * WIDTH + 8)
    offset = tl.load(place + WIDTH + across)[None, :]
    inverse = tl.load(place + 2 * WIDTH + _INVERSE)
    query_rows = (number * block + own) * step + residue
    query_in = (own < block) & (query_rows < n)
    inside = query_in[:, None] & width_in[None, :]
    if SCORED:
        size, ratio = tl.load(place + 2 * WIDTH + _SIZE), tl.load(place + 2 * WIDTH + _RATIO)
        small = tl.exp(size + ratio) * inverse
        common = tl.exp(size) * tl.load(place + across)[None, :] - small * offset
        y = tl.load(tokens + query_rows[:, None] * d + across[None, :], mask=inside, other=0.0)
        scores = tl.load(score_map + sample * score_stride + square, mask=square_in, other=0.0)
        query = tl.dot(small * (common + small * y), scores, out_dtype=tl.float64)
    if HALVED:
        near_places = number * block - lower + own
        near_rows, far_rows = near_places * step + residue, (near_places + BLOCK) * step + residue
        near_in, far_in = (near_places >= 0) & (near_rows < n), (near_places >= -BLOCK) & (far_rows < n)
        near = tl.load(tokens + near_rows[:, None] * d + across[None, :], near_in[:, None] & width_in[None, :], 0.0)
        far = tl.load(tokens + far_rows[:, None] * d + across[None, :], far_in[:, None] & width_in[None, :], 0.0)
        mixed, sums = _mixed_in_halves(query, near, far, near_in, far_in, reach - block, BLOCK)
    else:
        key_places = number * block - lower + seen
        key_rows = key_places * step + residue
        key_in = (seen < reach) & (key_places >= 0) & (key_rows < n)
        x = tl.load(tokens + key_rows[:, None] * d + across[None, :], key_in[:, None] & width_in[None, :], 0.0)
        if FILLED:
            open_pairs = (seen[None, :] >= own[:, None]) & (seen[None, :] <= own[:, None] + (reach - block))
            open_pairs = open_pairs & key_in[None, :]
        else:
            # Of 64 bits like all else: tile products in float64 take nothing that was loaded as a smaller type.
            pairs = words + ((residue * tl.num_programs(0) + number) * block + own) * 2
            low = tl.load(pairs, mask=own < block, other=0)[:, None]
            if REACH > 64:
                high = tl.load(pairs + 1, mask=own < block, other=0)[:, None]
                low = tl.where(seen[None, :] < 64, low, high)
            open_pairs = ((low >> (seen % 64).to(tl.int64)[None, :]) & 1) != 0
        if SCORED:
            score = tl.where(open_pairs, tl.dot(query, tl.trans(x), out_dtype=tl.float64), -float("inf"))
            best = tl.max(score, axis=1)
            weights = power_of_e(score - tl.where(best == -float("inf"), 0.0, best)[:, None])
        else:
            weights = open_pairs.to(tl.float64)
        if FILLED and not SCORED:
            start = tl.maximum(own, lower - number * block)
            behind = tl.minimum(own + (reach - block) + 1, (n - residue + step - 1) // step - number * block + lower)
            sums = tl.maximum(behind - start, 0).to(tl.float64)
        else:
            sums = tl.sum(weights, axis=1)
        mixed = tl.dot(weights, x, out_dtype=tl.float64)
    mixed *= (inverse / tl.where(sums == 0.0, 1.0, sums))[:, None]
    values = tl.load(value_map + sample * value_stride + square, mask=square_in, other=0.0)
    mixed = tl.dot(mixed - inverse * offset, values, out_dtype=tl.float64)
    tl.store(out + (sample * n + query_rows[:, None]) * d + across[None, :], mixed, mask=inside)
    weight = tl.load(reference + sample * n + query_rows, mask=query_in, other=0.0)
    there = parts + ((sample * tl.num_programs(1) + residue) * tl.num_programs(0) + number) * (4 * WIDTH + 8)
    tl.store(there + across, tl.sum(mixed * weight[:, None], axis=0))
    tl.store(there + 4 * WIDTH, largest_entry(tl.where(inside, mixed, 0.0)))
    if EXACT:
        many = tl.sum(query_in.to(tl.float64), axis=0)
        mean = tl.sum(tl.where(inside, mixed, 0.0), axis=0) / tl.maximum(many, 1.0)
        off = tl.where(inside, mixed - mean[None, :], 0.0)
        tl.store(there + WIDTH + across, mean)
        tl.store(there + 2 * WIDTH + across, tl.max(tl.where(inside, mixed, -float("inf")), axis=0))
        tl.store(there + 3 * WIDTH + across, tl.min(tl.where(inside, mixed, float("inf")), axis=0))
        tl.store(there + 4 * WIDTH + 1, tl.sum(tl.sum(off * off, axis=1), axis=0))
        tl.store(there + 4 * WIDTH + 2, many)


@triton.jit
def _together(parts, rows, programs, columns, EXACT: tl.constexpr, WIDTH: tl.constexpr):
    """The `parts` of these programs as those of one."""
    inside = rows < programs
    there, tile = parts + rows * (4 * WIDTH + 8), inside[:, None]
    place = there[:, None] + columns[None, :]
    total = tl.sum(tl.load(place, mask=tile, other=0.0), axis=0)
    most = tl.max(tl.load(there + 4 * WIDTH, mask=inside, other=0.0), axis=0)
    if EXACT:
        largest = tl.max(tl.load(place + 2 * WIDTH, mask=tile, other=-float("inf")), axis=0)
        smallest = tl.min(tl.load(place + 3 * WIDTH, mask=tile, other=float("inf")), axis=0)
        many = tl.load(there + 4 * WIDTH + 2, mask=inside, other=0.0)
        means = tl.load(place + WIDTH, mask=tile, other=0.0)
        every = tl.sum(many, axis=0)
        mean = tl.sum(many[:, None] * means, axis=0) / tl.maximum(every, 1.0)
        off = means - mean[None, :]
        squares = tl.sum(many * tl.sum(off * off, axis=1), axis=0)
        squares += tl.sum(tl.load(there + 4 * WIDTH + 1, mask=inside, other=0.0), axis=0)
    else:
        largest, smallest, mean, squares, every = total, total, total, most, most
    return total, most, largest, smallest, mean, squares, every


@triton.jit(do_not_specialize=["programs"])
def fold(parts, folded, programs, EXACT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """The `parts` of every ROWS programs as those of one: where there are many, one program would be slow."""
    group, sample = tl.program_id(0), tl.program_id(1).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    total, most, largest, smallest, mean, squares, many = _together(
        parts + sample * programs * (4 * WIDTH + 8),
        group * ROWS + tl.arange(0, ROWS),
        programs,
        columns,
        EXACT,
        WIDTH,
    )
    there = folded + (sample * tl.num_programs(0) + group) * (4 * WIDTH + 8)
    tl.store(there + columns, total)
    tl.store(there + 4 * WIDTH, most)
    if EXACT:
        tl.store(there + WIDTH + columns, mean)
        tl.store(there + 2 * WIDTH + columns, largest)
        tl.store(there + 3 * WIDTH + columns, smallest)
        tl.store(there + 4 * WIDTH + 1, squares)
        tl.store(there + 4 * WIDTH + 2, many)


@triton.jit(do_not_specialize=["programs"])
def settle(
    parts, carried, made, value_map, reference, n, d, programs, value_stride,
    SCORED: tl.constexpr, EXACT: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """What is carried on behind a layer, from the at most ROWS `parts` of its residual; of one sample.

    EXACT: the normal form itself. Else the residual is scaled by its largest entry before the reference is taken off,
    which is wrong where that was most of it. A SCORED layer about a mean is also not right where it shrinks so far
    that its digits may be lost: PyTorch's route, which knows every value, decides.
    """
    sample = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, WIDTH)
    column_in = columns < d
    here, there = carried + sample * (2 * WIDTH + 8), made + sample * (2 * WIDTH + 8)
    total, top, largest, smallest, mean, squares, _ = _together(
        parts + sample * programs * (4 * WIDTH + 8), tl.arange(0, ROWS), programs, columns, EXACT, WIDTH
    )
    before = tl.load(here + 2 * WIDTH + _RIGHT)
    if EXACT:
        top = tl.max(tl.where(column_in, tl.maximum(largest - total, total - smallest), 0.0), axis=0)
    else:
        before *= (tl.max(tl.abs(total), axis=0) <= 0.5 * top).to(tl.float64)
    # What is not finite anywhere must show everywhere: maxima alone would pass over it.
    wrong = 0.0 * tl.sum(total, axis=0)
    size, ratio = tl.load(here + 2 * WIDTH + _SIZE), tl.load(here + 2 * WIDTH + _RATIO)
    values = tl.load(
        value_map + sample * value_stride + columns[:, None] * d + columns[None, :],
        mask=column_in[:, None] & column_in[None, :],
        other=0.0,
    )
    common = row_through(tl.load(here + columns), values)
    common, size, ratio = normal_scales(common, tl.exp(ratio) * total, top + wrong, wrong, size, ratio)
    inverse = tl.where(top == 0.0, 0.0, 1.0 / tl.where(top == 0.0, 1.0, top))
    right = ((size <= 300.0) & ((top == 0.0) | (top > 1e-290))).to(tl.float64)
    if SCORED:
        # No value exceeds 1.5 column sums of the map, and `top` no 4 times what any row is away from the first.
        bound = tl.max(tl.sum(tl.abs(values), axis=0), axis=0)
        share = tl.load(reference + sample * n)
        about_root = (share == 0.0) | (share == 1.0)
        were_equal = tl.load(here + 2 * WIDTH + _RATIO) == -float("inf")
        right *= ((top >= 1e-11 * bound) | about_root | were_equal).to(tl.float64)
    tl.store(there + columns, common)
    tl.store(there + WIDTH + columns, total)
    tl.store(there + 2 * WIDTH + _SIZE, size)
    tl.store(there + 2 * WIDTH + _RATIO, ratio)
    tl.store(there + 2 * WIDTH + _INVERSE, inverse)
    tl.store(there + 2 * WIDTH + _RIGHT, before * right)
    if EXACT:
        mean = tl.where(column_in, (mean - total) * inverse, 0.0)
        log_mu, relative = log_spreads(common, mean, squares * inverse * inverse, size, ratio, n)
        tl.store(there + 2 * WIDTH + _MU, log_mu)
        tl.store(there + 2 * WIDTH + _RELATIVE, relative)
