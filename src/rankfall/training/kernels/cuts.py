"""Launches of the kernels for feed-forward and projections: how the work is cut, and where weights lie.

Weights are parts of the rows of parameters of a stack and are read in place. What is summed over shares of an axis is
added up one share after the other, so that two runs give the same bits.
"""

from __future__ import annotations

import functools
import importlib
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankfall.training.kernels.launch import precision


@dataclass(frozen=True)
class Cut:
    """How a kernel's work is cut: rows and columns of a block, warps, blocks on their way from memory."""

    rows: int
    block: int
    warps: int = 4
    stages: int = 2

    def dividing(self, columns: int) -> Cut:
        """The same with blocks that divide so many columns."""
        return Cut(self.rows, min(self.block, columns & -columns), self.warps, self.stages)


FORWARD, BACKWARD, WEIGHTS = Cut(64, 64), Cut(64, 64, stages=3), Cut(64, 64)
"""Of the feed-forward: the fastest of those tried on an H200."""
WIDEN, NARROW, GATHER, SUMS = Cut(64, 64), Cut(64, 32, stages=3), Cut(64, 64, warps=2), Cut(32, 64, warps=2, stages=3)
"""Of projections. Two warps are too few for Hopper's matrix instruction, which takes float32 factors only if they lie
along the axis that is summed over; the older one takes them as they are."""
WIDEN_SHARE = 256
"""Columns that one program of `widen` goes over."""
WARPS, MOST_SHARES, MOST_HIDDEN_SHARES = 16, 32, 4
"""Sums over rows are cut until there are so many warps for each multiprocessor, or so many shares; the hidden axis
until there are two programs for each, or so many shares."""
SUMMED = 1024
"""Numbers that one program adds up over shares."""


def factors() -> torch.dtype:
    """The type of the factors of products: where TF32 is allowed one with as many bits, else float32.

    float16 keeps 10 bits of mantissa as TF32 does, rounds where that truncates, and goes through matrix units twice
    as fast. Its narrow range is why gradients are scaled.
    """
    return torch.float16 if precision() == "tf32" else torch.float32


# ---- the feed-forward; `weights` (M, numbers) hold rise, rise_bias, fall and fall_bias in the type of `factors`


def rows_forward(x: Tensor, rise_bias: Tensor, fall_bias: Tensor, weights: Tensor, cut: Cut = FORWARD) -> Tensor:
    """The feed-forward of x (M, rows, width)."""
    hidden = rise_bias.shape[-1]
    cut = cut.dividing(hidden)
    shares = _hidden_shares(x, hidden, cut)
    out = x.new_empty(shares, *x.shape)
    biases, steps = in_place(rise_bias, fall_bias)
    _kernel("feed_forward", "rows_forward")[_row_programs(x, cut, shares)](
        x, *_parts(x, hidden, weights), *biases, out, x.shape[1], weights.shape[1] // 8, *steps,
        SHARE=hidden // shares, **_hidden_constants(x, hidden, cut),
    )  # fmt: skip
    return added(out)


def rows_backward(
    grad: Tensor, x: Tensor, rise_bias: Tensor, weights: Tensor, cut: Cut = BACKWARD
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of x; x and the scaled gradient as they are multiplied, and the powers of two to scale with."""
    hidden = rise_bias.shape[-1]
    cut = cut.dividing(hidden)
    shares = _hidden_shares(x, hidden, cut)
    x_grad = x.new_empty(shares, *x.shape)
    x_rounded, grad_rounded = (torch.empty(x.shape, dtype=weights.dtype, device=x.device) for _ in range(2))
    programs = _row_programs(x, cut, shares)
    powers = x.new_empty(x.shape[0], programs[0])
    biases, steps = in_place(rise_bias)
    _kernel("feed_forward", "rows_backward")[programs](
        grad, x, *_parts(x, hidden, weights), *biases, x_grad, x_rounded, grad_rounded, powers,
        x.shape[1], weights.shape[1] // 8, *steps, SHARE=hidden // shares, **_hidden_constants(x, hidden, cut),
    )  # fmt: skip
    return added(x_grad), x_rounded, grad_rounded, powers


def weights_backward(
    grad: Tensor,
    x_rounded: Tensor,
    grad_rounded: Tensor,
    powers: Tensor,
    rise_bias: Tensor,
    weights: Tensor,
    cut: Cut = WEIGHTS,
) -> Tensor:
    """Gradients of rise, rise_bias, fall and fall_bias one after the other, (M, numbers)."""
    models, rows, _ = grad.shape
    hidden = rise_bias.shape[-1]
    cut = cut.dividing(hidden)
    shares, share_rows = _row_shares(rows, models * hidden // cut.block, grad.device, cut)
    sums = grad.new_empty(shares, *weights.shape)
    biases, steps = in_place(rise_bias)
    _kernel("feed_forward", "weights_backward")[(hidden // cut.block, shares, models)](
        grad, x_rounded, grad_rounded, powers, *_parts(grad, hidden, weights), *biases, sums,
        rows, powers.shape[1], weights.shape[1] // 8, *steps, SHARE=share_rows,
        POWER_ROWS=BACKWARD.rows, POWERS=1 << (powers.shape[1] - 1).bit_length(),
        **_hidden_constants(grad, hidden, cut),
    )  # fmt: skip
    return added(sums)


def _parts(x: Tensor, hidden: int, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Where rise and fall begin."""
    return weights, weights[:, (x.shape[-1] + 1) * hidden :]


def _hidden_constants(x: Tensor, hidden: int, cut: Cut) -> dict[str, Any]:
    return {
        "HIDDEN": hidden,
        "WIDTH": x.shape[-1],
        "ROWS": cut.rows,
        "BLOCK": cut.block,
        "STAGES": cut.stages,
        "PRECISION": precision(),
        "num_warps": cut.warps,
    }


def _row_programs(x: Tensor, cut: Cut, shares: int) -> tuple[int, int, int]:
    return -(-x.shape[1] // cut.rows), shares, x.shape[0]


def _hidden_shares(x: Tensor, hidden: int, cut: Cut) -> int:
    """Into how many shares to cut the hidden axis: some, where rows alone leave multiprocessors idle."""
    programs = x.shape[0] * -(-x.shape[1] // cut.rows)
    shares = 1
    while programs * shares < 2 * _processors(x.device) and shares < MOST_HIDDEN_SHARES:
        if hidden % (2 * shares * cut.block):
            break
        shares *= 2
    return shares


# ---- projections


def widen(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, cut: Cut = WIDEN) -> None:
    """out (P, M, rows, columns) = x (M, rows, width) @ weight (M, P, width, columns) + bias (M, P, columns)."""
    models, rows, width = x.shape
    parts, columns = out.shape[0], out.shape[-1]
    cut = cut.dividing(columns)
    share = math.gcd(columns, WIDEN_SHARE)
    shift = weight if bias is None else bias
    _kernel("projections", "widen")[(-(-rows // cut.rows) * (columns // share), parts * models)](
        x, weight, shift, out, rows, *_quarters(weight), *_quarters(shift),
        COLUMNS=columns, SHARE=share, W_STEP=weight.stride(2), C_STEP=weight.stride(3), HAS_BIAS=bias is not None,
        HALF=factors() == torch.float16, PARTS=parts, WIDTH=width, ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages,
        PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip


def narrow(y: Tensor, weight: Tensor, cut: Cut) -> Tensor:
    """The sum over parts of y (P, M, rows, columns) @ weight (M, P, width, columns) transposed."""
    parts, models, rows, columns = y.shape
    width = weight.shape[2]
    cut = cut.dividing(columns)
    out = y.new_empty(models, rows, width)
    _kernel("projections", "narrow")[(-(-rows // cut.rows), models)](
        y, weight, out, rows, *_quarters(weight),
        COLUMNS=columns, W_STEP=weight.stride(2), C_STEP=weight.stride(3), PARTS=parts, WIDTH=width,
        ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip
    return out


def weight_sums(x: Tensor, y: Tensor, *, biased: bool, turned: bool, cut: Cut = SUMS) -> Tensor:
    """(M, numbers): for each part x (M, rows, width) transposed @ y (P, M, rows, columns), and y summed over rows.

    `turned` gives (columns, width) instead of (width, columns).
    """
    parts, models, rows, columns = y.shape
    width = x.shape[-1]
    cut = cut.dividing(columns)
    blocks = parts * (columns // cut.block)
    shares, share_rows = _row_shares(rows, models * blocks, x.device, cut)
    sums = x.new_empty(shares, models, parts * (width + biased) * columns)
    _kernel("projections", "weight_sums")[(blocks, shares, models)](
        x, y, sums, rows, models, COLUMNS=columns, SHARE=share_rows,
        W_STEP=1 if turned else columns, C_STEP=width if turned else 1, HAS_BIAS=biased, PARTS=parts, WIDTH=width,
        ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip
    return added(sums)


def added(parts: Tensor) -> Tensor:
    """The sum over the first axis, one after the other."""
    if parts.shape[0] == 1:
        return parts[0]
    out = torch.empty_like(parts[0])
    _kernel("projections", "add_shares")[(-(-out.numel() // SUMMED),)](
        parts, out, out.numel(), SHARES=parts.shape[0], SIZE=SUMMED
    )
    return out


def _kernel(module: str, name: str) -> Any:
    return getattr(importlib.import_module(f"rankfall.training.kernels.{module}"), name)


def _row_shares(rows: int, programs: int, device: torch.device, cut: Cut) -> tuple[int, int]:
    """Into how many shares to cut the rows that are summed over, and rows of a share."""
    wanted = max(1, min(MOST_SHARES, WARPS * _processors(device) // (cut.warps * programs)))
    share = -(-rows // wanted)
    share = -(-share // cut.rows) * cut.rows
    return -(-rows // share), share


@functools.cache
def _processors(device: torch.device) -> int:
    """Multiprocessors of a GPU; of other devices, where only tests come, a few."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 4


def _quarters(x: Tensor) -> tuple[int, int]:
    """Distances between models and between parts in units of four numbers."""
    return x.stride(0) // 4, x.stride(1) // 4


# ---- where weights lie


def in_place(*weights: Tensor) -> tuple[list[Tensor], list[int]]:
    """Weights (M, ...) and the distances between models in units of four numbers.

    As they are where each model's lies in one aligned piece, else copies.
    """
    found = [weight if _aligned(weight) and weight[0].is_contiguous() else weight.contiguous() for weight in weights]
    return found, [weight.stride(0) // 4 for weight in found]


def in_a_row(*weights: Tensor) -> Tensor:
    """Weights (M, ...) one after the other, (M, numbers): a view where they follow each other, as in a stack."""
    first = weights[0]
    size, begin, numbers = first.element_size(), first.data_ptr(), 0
    in_order = _aligned(first)
    for weight in weights:
        in_order &= weight.data_ptr() == begin + size * numbers and weight.stride(0) == first.stride(0)
        in_order &= weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        in_order &= weight[0].is_contiguous()
        numbers += weight[0].numel()
    if in_order:
        return first.as_strided((first.shape[0], numbers), (first.stride(0), 1))
    return torch.cat([weight.flatten(1) for weight in weights], dim=1)


def _aligned(weight: Tensor) -> bool:
    """Whether every model's weight begins at a multiple of 16 bytes."""
    return weight.data_ptr() % 16 == 0 and weight.stride(0) % 4 == 0
