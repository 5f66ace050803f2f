"""All eigenvalues of symmetric tridiagonal matrices by counting how many lie below given places.

T - x is eliminated from both ends to the middle at once, which halves the chain of divisions; as many eigenvalues lie
below x as there are negative pivots. Every eigenvalue is looked for at POINTS places at a time, so that each round
narrows its interval POINTS + 1 times.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _next_pivot(entry, square, pivot, smallest, NATIVE: tl.constexpr):
    """entry - square / pivot. A division in float64 is a long chain; a rough inverse that is mended, a short one."""
    if NATIVE:
        rough = tl.inline_asm_elementwise(
            "rcp.approx.ftz.f64 $0, $1;", "=d,d", [pivot], dtype=tl.float64, is_pure=True, pack=1
        )
    else:
        rough = (1.0 / pivot.to(tl.float32)).to(tl.float64)
    # An inverse wrong by a share e becomes right with the factor 1 / (1 - e) = 1 + e + e^2 + ..., e below 1e-6.
    wrong = 1.0 - pivot * rough
    share = square * rough
    found = (entry - share) - share * (wrong + wrong * wrong)
    return tl.where(tl.abs(found) < smallest, -smallest, found)


@triton.jit
def count_and_narrow(
    diagonal, squares, bounds, values, size, smallest,
    ROUNDS: tl.constexpr, EACH: tl.constexpr, POINTS: tl.constexpr, NATIVE: tl.constexpr,
):  # fmt: skip
    """values (b, n), smallest first, of diagonal (b, n) and squares (b, n), the squared off-diagonal before each
    entry (zero before the first); bounds (b, 2) enclose them all. Pivots below `smallest` are taken for it."""
    matrix = tl.program_id(1).to(tl.int64)
    diagonal += matrix * size
    squares += matrix * size
    index = tl.program_id(0) * EACH + tl.arange(0, EACH)
    steps = (tl.arange(0, POINTS) + 1).to(tl.float64) / (POINTS + 1)
    low = tl.zeros((EACH,), tl.float64) + tl.load(bounds + matrix * 2)
    high = tl.zeros((EACH,), tl.float64) + tl.load(bounds + matrix * 2 + 1)
    for _ in range(ROUNDS):
        x = low[:, None] + (high - low)[:, None] * steps[None, :]
        down, up = tl.full((EACH, POINTS), 1.0, tl.float64), tl.full((EACH, POINTS), 1.0, tl.float64)
        below = tl.zeros((EACH, POINTS), tl.int32)
        i = 0
        while i < size // 2:
            down = _next_pivot(tl.load(diagonal + i) - x, tl.load(squares + i), down, smallest, NATIVE)
            # Nothing comes after the last entry.
            after = tl.load(squares + size - i, mask=i > 0, other=0.0)
            up = _next_pivot(tl.load(diagonal + size - 1 - i) - x, after, up, smallest, NATIVE)
            below += (down < 0.0).to(tl.int32) + (up < 0.0).to(tl.int32)
            i += 1
        if size % 2 == 1:
            down = _next_pivot(
                tl.load(diagonal + size // 2) - x, tl.load(squares + size // 2), down, smallest, NATIVE
            )
            below += (down < 0.0).to(tl.int32)
        coupling = tl.load(squares + (size + 1) // 2, mask=size > 1, other=0.0)
        # The last pivots of both halves are coupled still: the signs of that pair's eigenvalues count, not theirs.
        apart = (down < 0.0).to(tl.int32) + (up < 0.0).to(tl.int32)
        coupled = tl.where(down * up < coupling, 1, tl.where(down + up < 0.0, 2, 0))
        under = below + coupled - apart <= index[:, None]
        low = tl.maximum(low, tl.max(tl.where(under, x, low[:, None]), axis=1))
        high = tl.minimum(high, tl.min(tl.where(under, high[:, None], x), axis=1))
    tl.store(values + matrix * size + index, 0.5 * (low + high), mask=index < size)
