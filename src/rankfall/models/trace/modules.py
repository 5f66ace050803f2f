"""Linear maps and norms among a model's modules, told by their shape where possible."""

from __future__ import annotations

from torch import Tensor, nn


def is_linear(module: nn.Module) -> bool:
    """A leaf with one weight matrix that is applied to tokens: nn.Linear, GPT-2's Conv1D, quantised kin."""
    weight = getattr(module, "weight", None)
    leaf = not any(True for _ in module.children())
    return (
        leaf
        and isinstance(weight, Tensor)
        and weight.ndim == 2
        and not isinstance(module, nn.Embedding | nn.Bilinear)
    )


def is_norm(module: nn.Module) -> bool:
    """A leaf named after a norm. Its shape alone cannot tell: some norms have no parameters."""
    return "norm" in type(module).__name__.lower() and not any(True for _ in module.children())
