"""Feed-forward and projections through the kernels, as PyTorch operators that the compiler leaves as they are.

Weights are parts of the rows of parameters of a stack and are read where they lie; a gradient comes as one tensor that
holds those of several weights in the order of the row.
"""

from __future__ import annotations

import functools
import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankfall.training.kernels.launch import HAS_TRITON, INTERPRETED, LEAST_TILE, precision

MOST_WIDTH = 64
"""Beyond it a program's tiles no longer fit into registers and shared memory."""
WARPS, MOST_SHARES = 16, 32
"""Sums over rows are cut into shares until there are so many warps for each multiprocessor, or shares."""
SUMMED = 1024
"""Numbers that one program adds up over shares."""


@dataclass(frozen=True)
class Cut:
    """How a kernel's work is cut: rows and columns of a block, warps, blocks on their way from memory."""

    rows: int
    block: int
    warps: int = 4
    stages: int = 2


FORWARD, BACKWARD, WEIGHTS = Cut(64, 64), Cut(64, 64, stages=3), Cut(64, 64)
"""Of the feed-forward: the fastest of those tried on an H200."""
WIDEN, NARROW, GATHER, SUMS = Cut(64, 64), Cut(64, 32, stages=3), Cut(64, 64, warps=2), Cut(32, 64, warps=2, stages=3)
"""Of projections. Two warps are too few for Hopper's matrix instruction, which takes float32 factors only if they lie
along the axis that is summed over; the older one takes them as they are."""
WIDEN_SHARE = 256


def layer_misfit(device: str, dtype: torch.dtype, width: int, columns: int) -> str | None:
    """Why the kernels cannot take weights of (width, columns) here, or None where they can."""
    if device != "cuda" and not INTERPRETED:
        return "it runs on GPUs only"
    if not HAS_TRITON:
        return "Triton is not installed"
    if dtype != torch.float32:
        return f"it computes in float32, not in {str(dtype).removeprefix('torch.')}"
    if width not in (LEAST_TILE, 2 * LEAST_TILE, MOST_WIDTH):
        return f"it takes widths of 16, 32 and 64, not {width}"
    if columns % LEAST_TILE:
        return f"it takes multiples of {LEAST_TILE} columns, not {columns}"
    return None


def factors() -> torch.dtype:
    """The type of the factors of products: where TF32 is allowed one with as many bits, else float32.

    float16 keeps 10 bits of mantissa as TF32 does, rounds where that truncates, and goes through matrix units twice as
    fast. Its narrow range is why gradients are scaled.
    """
    return torch.float16 if precision() == "tf32" else torch.float32


# ---- the feed-forward


@torch.library.custom_op("rankfall::rounded", mutates_args=())
def rounded(rise: Tensor, rise_bias: Tensor, fall: Tensor, fall_bias: Tensor) -> Tensor:
    """The weights of a feed-forward one after the other, (M, numbers), in the type in which they are multiplied."""
    row = _row(rise, rise_bias, fall, fall_bias)
    return torch.empty(row.shape, dtype=factors(), device=row.device).copy_(row)


@rounded.register_fake
def _(*weights: Tensor) -> Tensor:
    return weights[0].new_empty(weights[0].shape[0], sum(weight[0].numel() for weight in weights), dtype=factors())


@torch.library.custom_op("rankfall::feed_forward", mutates_args=())
def feed_forward(
    x: Tensor, rise: Tensor, rise_bias: Tensor, fall: Tensor, fall_bias: Tensor, weights: Tensor
) -> Tensor:
    """relu(x rise + rise_bias) fall + fall_bias, each with the model axis first: (M, rows, width) -> the same.

    `weights` are `rounded` of the four.
    """
    return _rows_forward(x.contiguous(), rise_bias, fall_bias, weights, FORWARD)


@feed_forward.register_fake
def _(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("rankfall::feed_forward_backward", mutates_args=())
def feed_forward_backward(grad: Tensor, x: Tensor, rise_bias: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of rise, rise_bias, fall and fall_bias one after the other, (M, numbers)."""
    grad = grad.contiguous()
    x_grad, *factored = _rows_backward(grad, x.contiguous(), rise_bias, weights, BACKWARD)
    return x_grad, _weights_backward(grad, *factored, rise_bias, weights, WEIGHTS)


@feed_forward_backward.register_fake
def _(grad: Tensor, x: Tensor, rise_bias: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(x.shape, dtype=x.dtype, device=x.device),
        torch.empty(weights.shape, dtype=x.dtype, device=x.device),
    )


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _feed_forward_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    x, *parts, weights = ctx.saved_tensors
    x_grad, flat = feed_forward_backward(grad, x, parts[1], weights)
    return x_grad, *_apart(flat, parts), None


feed_forward.register_autograd(_feed_forward_gradient, setup_context=_keep_inputs)


def _rows_forward(x: Tensor, rise_bias: Tensor, fall_bias: Tensor, weights: Tensor, cut: Cut) -> Tensor:
    hidden = rise_bias.shape[-1]
    cut = _fitted(cut, hidden)
    shares = _hidden_shares(x, hidden, cut)
    out = x.new_empty(shares, *x.shape)
    rise, fall, (rise_bias, fall_bias), steps = _feed_forward_weights(x, rise_bias, fall_bias, weights=weights)
    _kernel("feed_forward", "rows_forward")[_row_programs(x, cut, shares)](
        x, rise, rise_bias, fall, fall_bias, out, x.shape[1], *steps,
        SHARE=hidden // shares, **_hidden_constants(x, hidden, cut),
    )  # fmt: skip
    return _added(out)


def _rows_backward(
    grad: Tensor, x: Tensor, rise_bias: Tensor, weights: Tensor, cut: Cut
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradient of x; x and the scaled gradient as they are multiplied, and the powers of two to scale with."""
    hidden = rise_bias.shape[-1]
    cut = _fitted(cut, hidden)
    shares = _hidden_shares(x, hidden, cut)
    x_grad = x.new_empty(shares, *x.shape)
    x_rounded, grad_rounded = (torch.empty(x.shape, dtype=weights.dtype, device=x.device) for _ in range(2))
    programs = _row_programs(x, cut, shares)
    powers = x.new_empty(x.shape[0], programs[0])
    rise, fall, (rise_bias,), steps = _feed_forward_weights(x, rise_bias, weights=weights)
    _kernel("feed_forward", "rows_backward")[programs](
        grad, x, rise, rise_bias, fall, x_grad, x_rounded, grad_rounded, powers, x.shape[1], *steps,
        SHARE=hidden // shares, **_hidden_constants(x, hidden, cut),
    )  # fmt: skip
    return _added(x_grad), x_rounded, grad_rounded, powers


def _weights_backward(
    grad: Tensor, x_rounded: Tensor, grad_rounded: Tensor, powers: Tensor, rise_bias: Tensor, weights: Tensor, cut: Cut
) -> Tensor:
    models, rows, _ = grad.shape
    hidden = rise_bias.shape[-1]
    cut = _fitted(cut, hidden)
    shares, share_rows = _row_shares(rows, models * hidden // cut.block, grad.device, cut)
    sums = grad.new_empty(shares, *weights.shape)
    rise, fall, (rise_bias,), steps = _feed_forward_weights(grad, rise_bias, weights=weights)
    _kernel("feed_forward", "weights_backward")[(hidden // cut.block, shares, models)](
        grad, x_rounded, grad_rounded, powers, rise, rise_bias, fall, sums, rows, powers.shape[1], *steps,
        SHARE=share_rows, POWER_ROWS=BACKWARD.rows, POWERS=_power(powers.shape[1]),
        **_hidden_constants(grad, hidden, cut),
    )  # fmt: skip
    return _added(sums)


def _feed_forward_weights(
    x: Tensor, *biases: Tensor, weights: Tensor
) -> tuple[Tensor, Tensor, list[Tensor], tuple[int, int]]:
    """Where rise and fall begin, the biases, and how far apart models are: by eight numbers, and by four for biases."""
    models, numbers = weights.shape
    hidden, width = biases[0].shape[-1], x.shape[-1]
    placed = [bias if _aligned(bias) and bias.stride(0) == biases[0].stride(0) else None for bias in biases]
    if any(bias is None for bias in placed):
        size = max(bias.shape[-1] for bias in biases)
        room = x.new_empty(len(biases), models, size)
        for target, bias in zip(room, biases, strict=True):
            target[:, : bias.shape[-1]].copy_(bias)
        placed = list(room)
    first = placed[0]
    assert first is not None
    return weights, weights[:, (width + 1) * hidden :], placed, (numbers // 8, first.stride(0) // 4)


# ---- queries, keys and values


@torch.library.custom_op("rankfall::project", mutates_args=())
def project(
    x: Tensor,
    query: Tensor,
    query_bias: Tensor,
    key: Tensor,
    key_bias: Tensor,
    value: Tensor,
    value_bias: Tensor,
) -> Tensor:
    """(M, rows, width) -> (3, M, rows, columns): queries, keys and values with their biases."""
    x = x.contiguous()
    columns = query.shape[-1]
    packed = _packed(query, query_bias, key, key_bias, value, value_bias)
    out = x.new_empty(3, *x.shape[:2], columns)
    _widen(x, packed[:, :, :-1], packed[:, :, -1], out)
    return out


@project.register_fake
def _(x: Tensor, query: Tensor, *others: Tensor) -> Tensor:
    return x.new_empty(3, *x.shape[:2], query.shape[-1])


@torch.library.custom_op("rankfall::project_backward", mutates_args=())
def project_backward(
    grad: Tensor,
    x: Tensor,
    query: Tensor,
    query_bias: Tensor,
    key: Tensor,
    key_bias: Tensor,
    value: Tensor,
    value_bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of the weights and biases one after the other, (M, numbers)."""
    grad, x = grad.contiguous(), x.contiguous()
    packed = _packed(query, query_bias, key, key_bias, value, value_bias)
    return _narrow(grad, packed[:, :, :-1], NARROW), _weight_sums(x, grad, biased=True, turned=False)


@project_backward.register_fake
def _(grad: Tensor, x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor]:
    numbers = sum(weight[0].numel() for weight in weights)
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[0], numbers)


def _project_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    x_grad, flat = project_backward(grad, *ctx.saved_tensors)
    return x_grad, *_apart(flat, ctx.saved_tensors[1:])


project.register_autograd(_project_gradient, setup_context=_keep_inputs)


# ---- back to the width


@torch.library.custom_op("rankfall::gather", mutates_args=())
def gather(mixed: Tensor, output: Tensor) -> Tensor:
    """(M, rows, columns) @ (M, columns, width)."""
    (output,), _ = _in_place(output)
    return _narrow(mixed.contiguous()[None], output.mT[:, None], GATHER)


@gather.register_fake
def _(mixed: Tensor, output: Tensor) -> Tensor:
    return mixed.new_empty(*mixed.shape[:2], output.shape[-1])


@torch.library.custom_op("rankfall::gather_backward", mutates_args=())
def gather_backward(grad: Tensor, mixed: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the mixed heads and of the output's weights."""
    grad, mixed = grad.contiguous(), mixed.contiguous()
    (output,), _ = _in_place(output)
    wide = mixed.new_empty(1, *mixed.shape)
    _widen(grad, output.mT[:, None], None, wide)
    sums = _weight_sums(grad, mixed[None], biased=False, turned=True)
    return wide[0], sums.view(output.shape)


@gather_backward.register_fake
def _(grad: Tensor, mixed: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    return (
        torch.empty(mixed.shape, dtype=mixed.dtype, device=mixed.device),
        torch.empty(output.shape, dtype=mixed.dtype, device=mixed.device),
    )


def _gather_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    return tuple(gather_backward(grad, *ctx.saved_tensors))


gather.register_autograd(_gather_gradient, setup_context=_keep_inputs)


# ---- launches


def _widen(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor, cut: Cut | None = None) -> None:
    """out (P, M, rows, columns) = x (M, rows, width) @ weight (M, P, width, columns) + bias (M, P, columns)."""
    models, rows, width = x.shape
    parts, columns = out.shape[0], out.shape[-1]
    cut = _fitted(cut or WIDEN, columns)
    share = min(columns, math.gcd(columns, WIDEN_SHARE))
    shift = weight if bias is None else bias
    _kernel("projections", "widen")[(-(-rows // cut.rows) * (columns // share), parts * models)](
        x, weight, shift, out, rows, *_quarters(weight, 0, 1), *_quarters(shift, 0, 1),
        COLUMNS=columns, SHARE=share, W_STEP=weight.stride(2), C_STEP=weight.stride(3), HAS_BIAS=bias is not None,
        HALF=factors() == torch.float16, PARTS=parts,
        WIDTH=width, ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip


def _narrow(y: Tensor, weight: Tensor, cut: Cut) -> Tensor:
    """The sum over parts of y (P, M, rows, columns) @ weight (M, P, width, columns) transposed."""
    parts, models, rows, columns = y.shape
    width = weight.shape[2]
    cut = _fitted(cut, columns)
    out = y.new_empty(models, rows, width)
    _kernel("projections", "narrow")[(-(-rows // cut.rows), models)](
        y, weight, out, rows, *_quarters(weight, 0, 1),
        COLUMNS=columns, W_STEP=weight.stride(2), C_STEP=weight.stride(3), PARTS=parts,
        WIDTH=width, ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip
    return out


def _weight_sums(x: Tensor, y: Tensor, *, biased: bool, turned: bool, cut: Cut | None = None) -> Tensor:
    """(M, numbers): for each part x (M, rows, width) transposed @ y (P, M, rows, columns), and the sum of y over rows.

    `turned` gives (columns, width) instead of (width, columns).
    """
    parts, models, rows, columns = y.shape
    width = x.shape[-1]
    cut = _fitted(cut or SUMS, columns)
    blocks = parts * (columns // cut.block)
    shares, share_rows = _row_shares(rows, models * blocks, x.device, cut)
    sums = x.new_empty(shares, models, parts * (width + biased) * columns)
    _kernel("projections", "weight_sums")[(blocks, shares, models)](
        x, y, sums, rows, models,
        COLUMNS=columns, SHARE=share_rows, W_STEP=1 if turned else columns, C_STEP=width if turned else 1, HAS_BIAS=biased, PARTS=parts,
        WIDTH=width, ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip
    return _added(sums)


def _added(parts: Tensor) -> Tensor:
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


def _fitted(cut: Cut, columns: int) -> Cut:
    """The cut for so many columns: blocks must divide them."""
    block = min(cut.block, columns & -columns)
    return Cut(cut.rows, block, cut.warps, cut.stages)


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


def _power(size: int) -> int:
    """The power of two from this size on."""
    return 1 << (size - 1).bit_length()


def _row_programs(x: Tensor, cut: Cut, shares: int) -> tuple[int, int, int]:
    return -(-x.shape[1] // cut.rows), shares, x.shape[0]


def _hidden_shares(x: Tensor, hidden: int, cut: Cut) -> int:
    """Into how many shares to cut the hidden axis: some, where rows alone leave processors of the GPU idle."""
    programs = x.shape[0] * -(-x.shape[1] // cut.rows)
    shares = 1
    while programs * shares < 2 * _processors(x.device) and hidden % (2 * shares * cut.block) == 0 and shares < 4:
        shares *= 2
    return shares


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


def _quarters(x: Tensor, *axes: int) -> tuple[int, ...]:
    """Strides in units of four numbers."""
    return tuple(x.stride(axis) // 4 for axis in axes)


def _in_place(*weights: Tensor) -> tuple[list[Tensor], list[int]]:
    """Weights (M, ...) and the distances between models: as they are where each model's lies in one aligned piece."""
    found = [weight if _aligned(weight) and weight[0].is_contiguous() else weight.contiguous() for weight in weights]
    return found, [weight.stride(0) // 4 for weight in found]


def _packed(*weights_and_biases: Tensor) -> Tensor:
    """Three times a weight (M, width, columns) and its bias (M, columns) as (M, 3, width + 1, columns)."""
    models, width, columns = weights_and_biases[0].shape
    return _row(*weights_and_biases).view(models, 3, width + 1, columns)


def _row(*weights: Tensor) -> Tensor:
    """Weights (M, ...) one after the other, (M, numbers): a view where they follow each other, as in a stack."""
    first = weights[0]
    size, wanted, numbers = first.element_size(), first.data_ptr(), 0
    in_order = _aligned(first)
    for weight in weights:
        in_order &= weight.data_ptr() == wanted + size * numbers and weight.stride(0) == first.stride(0)
        in_order &= weight.untyped_storage().data_ptr() == first.untyped_storage().data_ptr()
        in_order &= weight[0].is_contiguous()
        numbers += weight[0].numel()
    if in_order:
        return first.as_strided((first.shape[0], numbers), (first.stride(0), 1))
    return torch.cat([weight.flatten(1) for weight in weights], dim=1)


def _aligned(weight: Tensor) -> bool:
    """Whether every model's weight begins at a multiple of 16 bytes."""
    return weight.data_ptr() % 16 == 0 and weight.stride(0) % 4 == 0


def _apart(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of weights that lie one after the other in (M, numbers)."""
    pieces = flat.split([weight[0].numel() for weight in weights], dim=1)
    return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
