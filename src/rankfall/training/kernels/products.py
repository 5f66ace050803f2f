"""Tile products of the kernels, in one place for their rounding."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b, PRECISION: tl.constexpr):
    """a @ b over the last two axes, summed in float32.

    PRECISION is how float32 factors are taken: tf32, tf32x3 (three passes, which keeps float32), or `widened`: any
    type made float32 first, for Triton's interpreter, which multiplies the bits of bfloat16 as if they were integers.
    """
    if PRECISION == "widened":
        return tl.dot(a.to(tl.float32), b.to(tl.float32), input_precision="ieee")
    else:
        return tl.dot(a, b, input_precision=PRECISION)
