"""Householder reduction of a batch of symmetric matrices to tridiagonal form, a launch for each column.

Column k is made zero below its second entry by I - t v v^T. With p = A v, the matrix becomes A - v w^T - w v^T where
w = t p - (t^2 / 2) (p . v) v. One launch finishes the w of the column before, forms this column's v, changes the rows
of each program by v w^T + w v^T of the column before, and multiplies them with the new v while they are at hand. So
the matrix is read once for each column, and programs meet once for each column, at the end of the launch.

What every program needs (w, v, their lengths) it computes itself: vectors are short, waiting is dear.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["first", "column"])
def reduce_column(
    matrices, rows, reflectors, products, factors, diagonal, off,
    size, first, column,
    BLOCK: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Entry `column` of diagonal and off-diagonal, and the product of its v with ROWS rows of the matrix.

    matrices (b, n, n) float64, symmetric, both halves kept. rows, reflectors, products (2, b, n): what launches hand
    on, to even and odd columns in turn: the matrix's row of that number, v, and A v. factors, diagonal, off (b, n).
    Nothing before `first` is looked at; BLOCK >= n - first.
    """
    slab, matrix, batch = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.num_programs(1)
    this, other = ((column % 2) * batch + matrix) * size, (((column + 1) % 2) * batch + matrix) * size
    matrices += matrix * size * size
    place = first + tl.arange(0, BLOCK)
    row = first + slab * ROWS + tl.arange(0, ROWS)
    live = (place >= column) & (place < size)
    changed = (row > column) & (row < size)
    follows = column > 0

    where = matrices + row.to(tl.int64)[:, None] * size + place[None, :]
    inside = changed[:, None] & (live & (place > column))[None, :]
    block = tl.load(where, mask=inside, other=0.0)
    given = tl.load(rows + this + place, mask=live, other=0.0)
    v = tl.load(reflectors + other + place, mask=live & follows, other=0.0)
    product = tl.load(products + other + place, mask=live & follows, other=0.0)
    v_rows = tl.load(reflectors + other + row, mask=changed & follows, other=0.0)
    product_rows = tl.load(products + other + row, mask=changed & follows, other=0.0)
    factor = tl.load(factors + matrix * size + column - 1, mask=follows, other=0.0)
    product_here = tl.load(products + other + column, mask=follows, other=0.0)
    given_here = tl.load(rows + this + column)
    has_next = column + 1 < size
    v_next = tl.load(reflectors + other + column + 1, mask=follows & has_next, other=0.0)
    product_next = tl.load(products + other + column + 1, mask=follows & has_next, other=0.0)
    given_next = tl.load(rows + this + column + 1, mask=has_next, other=0.0)

    # The w of the column before, whose v is one here.
    half = 0.5 * factor * factor * tl.sum(product * v, axis=0)
    w = factor * product - half * v
    w_here = factor * product_here - half
    w_next = factor * product_next - half * v_next

    # This column as that one left it, and the reflection that takes it to the off-diagonal.
    corner = given_here - 2.0 * w_here
    beside = given_next - v_next * w_here - w_next
    below = tl.where(place > column + 1, given - v * w_here - w, 0.0)
    length = tl.sum(below * below, axis=0)
    reflects = length > 0.0
    image = tl.sqrt(beside * beside + length)
    image = tl.where(reflects, tl.where(beside > 0.0, -image, image), beside)
    reflector = tl.where(place == column + 1, 1.0, below * (1.0 / tl.where(reflects, beside - image, 1.0)))
    if slab == 0:
        tl.store(diagonal + matrix * size + column, corner)
        tl.store(off + matrix * size + column, image)
        new_factor = tl.where(reflects, (image - beside) / tl.where(reflects, image, 1.0), 0.0)
        tl.store(factors + matrix * size + column, new_factor)
        tl.store(reflectors + this + place, reflector, mask=live)

    w_rows = factor * product_rows - half * v_rows
    block -= v_rows[:, None] * w[None, :] + w_rows[:, None] * v[None, :]
    tl.store(products + this + row, tl.sum(block * reflector[None, :], axis=1), mask=changed)
    tl.store(where, block, mask=inside)
    handed = (rows + other + place)[None, :] + tl.zeros((ROWS, 1), tl.int64)
    tl.store(handed, block, mask=inside & (row == column + 1)[:, None])
