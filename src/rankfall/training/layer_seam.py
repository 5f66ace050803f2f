"""The one place where training computes projections and the feed-forward: by fused kernels, or by PyTorch's products.

Weights have the model axis first. Both ways are equal up to rounding.
"""

from __future__ import annotations

from torch import Tensor

from rankfall.training.kernels.layer import feed_forward as fused_feed_forward
from rankfall.training.kernels.layer import layer_misfit, rounded


def choose(x: Tensor, columns: int) -> str:
    """The faster way for tokens (..., width) and weights of (width, columns)."""
    if x.is_cuda and layer_misfit("cuda", x.dtype, x.shape[-1], columns) is None:
        return "kernel"
    return "products"


def feed_forward(x: Tensor, rise: Tensor, rise_bias: Tensor, fall: Tensor, fall_bias: Tensor, way: str) -> Tensor:
    """relu(x rise + rise_bias) fall + fall_bias: (M, rows, width) -> the same."""
    if way == "kernel":
        parts = (rise, rise_bias, fall, fall_bias)
        return fused_feed_forward(x, *parts, rounded(*(part.detach() for part in parts)))
    return linear(linear(x, rise, rise_bias).relu_(), fall, fall_bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """x weight + bias."""
    # Not baddbmm: it would first write the bias to memory. In place, since a processor pays for each new tensor.
    return (x @ weight).add_(bias[:, None])
