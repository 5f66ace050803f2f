"""Feed-forward and projections through the kernels, as PyTorch operators that the compiler leaves as they are.

Weights are parts of the rows of parameters of a stack and are read where they lie; a gradient comes as one tensor that
holds those of several weights in the order of the row.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rankfall.training.kernels.launch import HAS_TRITON, INTERPRETED, LEAST_TILE, precision

MOST_WIDTH = 64
"""Beyond it a program's tiles no longer fit into registers and shared memory."""
PROGRAMS, MOST_SHARES = 4, 16
"""Sums over rows are cut into shares until there are so many programs for each multiprocessor, or shares."""
SUMMED = 1024
"""Numbers that one program adds up over shares."""


@dataclass(frozen=True)
class Cut:
    """How a kernel's work is cut: rows and columns of a block, warps, blocks on their way from memory."""

    rows: int
    block: int
    warps: int = 4
    stages: int = 2


FORWARD, BACKWARD, WEIGHTS = Cut(64, 64), Cut(64, 32), Cut(32, 64)
"""Of the feed-forward."""
WIDEN, NARROW, SUMS = Cut(64, 64), Cut(64, 64), Cut(64, 64)
"""Of projections."""


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


# ---- the feed-forward


@torch.library.custom_op("rankfall::feed_forward", mutates_args=())
def feed_forward(x: Tensor, rise: Tensor, rise_bias: Tensor, fall: Tensor, fall_bias: Tensor) -> Tensor:
    """relu(x rise + rise_bias) fall + fall_bias, each with the model axis first: (M, rows, width) -> the same."""
    x = x.contiguous()
    cut = _fitted(FORWARD, rise.shape[-1])
    shares = _hidden_shares(x, rise.shape[-1], cut)
    out = x.new_empty(shares, *x.shape)
    weights, steps = _in_place(rise, rise_bias, fall, fall_bias)
    _kernel("feed_forward", "rows_forward")[_row_programs(x, cut, shares)](
        x, *weights, out, x.shape[1], *steps, **_hidden_constants(rise, cut), SHARE=rise.shape[-1] // shares
    )
    return _added(out)


@feed_forward.register_fake
def _(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("rankfall::feed_forward_backward", mutates_args=())
def feed_forward_backward(
    grad: Tensor, x: Tensor, rise: Tensor, rise_bias: Tensor, fall: Tensor
) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of rise, rise_bias, fall and fall_bias one after the other, (M, numbers)."""
    grad, x = grad.contiguous(), x.contiguous()
    models, rows, width = x.shape
    hidden = rise.shape[-1]
    weights, steps = _in_place(rise, rise_bias, fall)
    cut = _fitted(BACKWARD, hidden)
    shares = _hidden_shares(x, hidden, cut)
    x_grad = x.new_empty(shares, *x.shape)
    _kernel("feed_forward", "rows_backward")[_row_programs(x, cut, shares)](
        grad, x, *weights, x_grad, rows, *steps, **_hidden_constants(rise, cut), SHARE=hidden // shares
    )
    cut = _fitted(WEIGHTS, hidden)
    shares, share_rows = _row_shares(rows, models * hidden // cut.block, x.device, cut)
    sums = x.new_empty(shares, models, (2 * width + 1) * hidden + width)
    _kernel("feed_forward", "weights_backward")[(hidden // cut.block, shares, models)](
        grad, x, *weights, sums, rows, *steps, **_hidden_constants(rise, cut), SHARE=share_rows
    )
    return _added(x_grad), _added(sums)


@feed_forward_backward.register_fake
def _(grad: Tensor, x: Tensor, rise: Tensor, rise_bias: Tensor, fall: Tensor) -> tuple[Tensor, Tensor]:
    numbers = rise[0].numel() + rise_bias[0].numel() + fall[0].numel() + x.shape[-1]
    return torch.empty(x.shape, dtype=x.dtype, device=x.device), x.new_empty(x.shape[0], numbers)


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _feed_forward_gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
    *needed, fall_bias = ctx.saved_tensors
    x_grad, flat = feed_forward_backward(grad, *needed)
    return x_grad, *_apart(flat, (*needed[1:], fall_bias))


feed_forward.register_autograd(_feed_forward_gradient, setup_context=_keep_inputs)


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
    return _narrow(grad, packed[:, :, :-1]), _weight_sums(x, grad, biased=True, turned=False)


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
    return _narrow(mixed.contiguous()[None], output.mT[:, None])


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


def _widen(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out (P, M, rows, columns) = x (M, rows, width) @ weight (M, P, width, columns) + bias (M, P, columns)."""
    models, rows, width = x.shape
    parts, columns = out.shape[0], out.shape[-1]
    cut = _fitted(WIDEN, columns)
    shift = weight if bias is None else bias
    _kernel("projections", "widen")[(-(-rows // cut.rows) * (columns // cut.block), parts * models)](
        x, weight, shift, out, rows, *_quarters(weight, 0, 1), *_quarters(shift, 0, 1),
        COLUMNS=columns, W_STEP=weight.stride(2), C_STEP=weight.stride(3), HAS_BIAS=bias is not None, PARTS=parts,
        WIDTH=width, ROWS=cut.rows, BLOCK=cut.block, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip


def _narrow(y: Tensor, weight: Tensor) -> Tensor:
    """The sum over parts of y (P, M, rows, columns) @ weight (M, P, width, columns) transposed."""
    parts, models, rows, columns = y.shape
    width = weight.shape[2]
    cut = _fitted(NARROW, columns)
    out = y.new_empty(models, rows, width)
    _kernel("projections", "narrow")[(-(-rows // cut.rows), models)](
        y, weight, out, rows, *_quarters(weight, 0, 1),
        COLUMNS=columns, W_STEP=weight.stride(2), C_STEP=weight.stride(3), PARTS=parts,
        WIDTH=width, ROWS=cut.rows, BLOCK=cut.block, STAGES=cut.stages, PRECISION=precision(), num_warps=cut.warps,
    )  # fmt: skip
    return out


def _weight_sums(x: Tensor, y: Tensor, *, biased: bool, turned: bool) -> Tensor:
    """(M, numbers): for each part x (M, rows, width) transposed @ y (P, M, rows, columns), and the sum of y over rows.

    `turned` gives (columns, width) instead of (width, columns).
    """
    parts, models, rows, columns = y.shape
    width = x.shape[-1]
    cut = _fitted(SUMS, columns)
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


def _hidden_constants(rise: Tensor, cut: Cut) -> dict[str, Any]:
    return {
        "HIDDEN": rise.shape[-1],
        "WIDTH": rise.shape[-2],
        "ROWS": cut.rows,
        "BLOCK": cut.block,
        "STAGES": cut.stages,
        "PRECISION": precision(),
        "num_warps": cut.warps,
    }


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
    wanted = max(1, min(MOST_SHARES, PROGRAMS * _processors(device) // programs))
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
    """Three times a weight (M, width, columns) and its bias (M, columns) as (M, 3, width + 1, columns).

    A view where they follow each other in a row of parameters, as those of a stack do.
    """
    query, bias, *_ = weights_and_biases
    models, width, columns = query.shape
    size, wanted = query.element_size(), query.data_ptr()
    in_order = _aligned(query) and columns % 4 == 0
    for weight in weights_and_biases:
        in_order &= weight.data_ptr() == wanted and weight.stride(0) == query.stride(0) and weight[0].is_contiguous()
        in_order &= weight.untyped_storage().data_ptr() == query.untyped_storage().data_ptr()
        wanted += weight[0].numel() * size
    if in_order:
        part = (width + 1) * columns
        return query.as_strided((models, 3, width + 1, columns), (query.stride(0), part, columns, 1))
    joined = [weight.reshape(models, -1) for weight in weights_and_biases]
    return torch.cat(joined, dim=1).view(models, 3, width + 1, columns)


def _aligned(weight: Tensor) -> bool:
    """Whether every model's weight begins at a multiple of 16 bytes."""
    return weight.data_ptr() % 16 == 0 and weight.stride(0) % 4 == 0


def _apart(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of weights that lie one after the other in (M, numbers)."""
    pieces = flat.split([weight[0].numel() for weight in weights], dim=1)
    return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
