"""The kernels as PyTorch operators: differentiable, and opaque to the compiler, which fuses what is around them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfall.training.kernels.launch import Biases, backward, forward, launch_for


@torch.library.custom_op("rankfall::small_heads", mutates_args=())
def small_heads(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_bias: Tensor | None,
    k_bias: Tensor | None,
    v_bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """Softmax attention of q + q_bias, k + k_bias and v + v_bias, axes as in `attention_seam.attend`.

    Biases (M, H * width) come all or none.
    """
    return forward(q, k, v, _biases(q_bias, k_bias, v_bias), mask, scale, launch_for(q, k, v, "forward"))


@small_heads.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *others: Tensor | float | None) -> Tensor:
    return q.new_empty(*q.shape[:4], v.shape[-1])


@torch.library.custom_op("rankfall::small_heads_backward", mutates_args=())
def small_heads_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_bias: Tensor | None,
    k_bias: Tensor | None,
    v_bias: Tensor | None,
    mask: Tensor | None,
    scale: float,
) -> list[Tensor]:
    """Gradients of q, k, v and, where there are biases, of these."""
    return list(
        backward(grad, q, k, v, _biases(q_bias, k_bias, v_bias), mask, scale, launch_for(q, k, v, "backward"))
    )


@small_heads_backward.register_fake
def _(grad: Tensor, *tensors_and_scale: Any) -> list[Tensor]:
    return [torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in tensors_and_scale[:6] if x is not None]


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *tensors, scale = inputs
    ctx.save_for_backward(*tensors)
    ctx.scale = scale


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    found = small_heads_backward(grad, *ctx.saved_tensors, ctx.scale)
    return *found, *(None,) * (8 - len(found))


small_heads.register_autograd(_gradient, setup_context=_keep)


def _biases(q_bias: Tensor | None, k_bias: Tensor | None, v_bias: Tensor | None) -> Biases | None:
    if q_bias is None or k_bias is None or v_bias is None:
        return None
    return q_bias, k_bias, v_bias
