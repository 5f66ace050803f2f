"""Feed-forward and projections as PyTorch operators: differentiable, and opaque to the compiler.

A gradient of weights comes as one tensor that holds those of several in the order of a row of parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from rankfall.training.kernels.cuts import (
    GATHER,
    NARROW,
    factors,
    in_a_row,
    in_place,
    narrow,
    rows_backward,
    rows_forward,
    weight_sums,
    weights_backward,
    widen,
)
from rankfall.training.kernels.launch import HAS_TRITON, INTERPRETED, LEAST_TILE

WIDTHS = (16, 32, 64)
"""Powers of two whose tiles fit into registers and shared memory."""


def layer_misfit(device: str, dtype: torch.dtype, width: int, columns: int) -> str | None:
    """Why the kernels cannot take weights of (width, columns) here, or None where they can."""
    if device != "cuda" and not INTERPRETED:
        return "it runs on GPUs only"
    if not HAS_TRITON:
        return "Triton is not installed"
    if dtype != torch.float32:
        return f"it computes in float32, not in {str(dtype).removeprefix('torch.')}"
    if width not in WIDTHS:
        return f"it takes widths of 16, 32 and 64, not {width}"
    if columns % LEAST_TILE:
        return f"it takes multiples of {LEAST_TILE} columns, not {columns}"
    return None


# ---- the feed-forward


@torch.library.custom_op("rankfall::rounded", mutates_args=())
def rounded(rise: Tensor, rise_bias: Tensor, fall: Tensor, fall_bias: Tensor) -> Tensor:
    """The weights of a feed-forward one after the other, (M, numbers), in the type in which they are multiplied."""
    row = in_a_row(rise, rise_bias, fall, fall_bias)
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
    return rows_forward(x.contiguous(), rise_bias, fall_bias, weights)


@feed_forward.register_fake
def _(x: Tensor, *weights: Tensor) -> Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("rankfall::feed_forward_backward", mutates_args=())
def feed_forward_backward(grad: Tensor, x: Tensor, rise_bias: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of x, and of rise, rise_bias, fall and fall_bias one after the other, (M, numbers)."""
    grad = grad.contiguous()
    x_grad, x_rounded, grad_rounded, powers = rows_backward(grad, x.contiguous(), rise_bias, weights)
    return x_grad, weights_backward(grad, x_rounded, grad_rounded, powers, rise_bias, weights)


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
    packed = _packed(query, query_bias, key, key_bias, value, value_bias)
    out = x.new_empty(3, *x.shape[:2], query.shape[-1])
    widen(x.contiguous(), packed[:, :, :-1], packed[:, :, -1], out)
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
    grad = grad.contiguous()
    packed = _packed(query, query_bias, key, key_bias, value, value_bias)
    x_grad = narrow(grad, packed[:, :, :-1], NARROW)
    return x_grad, weight_sums(x.contiguous(), grad, biased=True, turned=False)


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
    (output,), _ = in_place(output)
    return narrow(mixed.contiguous()[None], output.mT[:, None], GATHER)


@gather.register_fake
def _(mixed: Tensor, output: Tensor) -> Tensor:
    return mixed.new_empty(*mixed.shape[:2], output.shape[-1])


@torch.library.custom_op("rankfall::gather_backward", mutates_args=())
def gather_backward(grad: Tensor, mixed: Tensor, output: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of the mixed heads and of the output's weights."""
    grad, mixed = grad.contiguous(), mixed.contiguous()
    (output,), _ = in_place(output)
    wide = mixed.new_empty(1, *mixed.shape)
    widen(grad, output.mT[:, None], None, wide)
    sums = weight_sums(grad, mixed[None], biased=False, turned=True)
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


def _packed(*weights_and_biases: Tensor) -> Tensor:
    """Three times a weight (M, width, columns) and its bias (M, columns) as (M, 3, width + 1, columns)."""
    models, width, columns = weights_and_biases[0].shape
    return in_a_row(*weights_and_biases).view(models, 3, width + 1, columns)


def _apart(flat: Tensor, weights: Sequence[Tensor]) -> list[Tensor]:
    """The gradients of weights that lie one after the other in (M, numbers)."""
    pieces = flat.split([weight[0].numel() for weight in weights], dim=1)
    return [piece.view(weight.shape) for piece, weight in zip(pieces, weights, strict=True)]
