"""Run code in float64 that casts to float32 inside.

`.double()` alone does not do it: many softmaxes and norms of the library cast what they are given to float32 and
back, which leaves a floor near 1e-7 under everything measured. Inside this mode such casts leave float64 alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
NARROWING = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


class KeepFloat64(TorchFunctionMode):
    """Every cast of a float64 tensor to a narrower type keeps float64; everything else is as it is."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        if any(isinstance(value, Tensor) and value.dtype == torch.float64 for value in (*args, *options.values())):
            if func in NARROWING:
                return args[0]
            args = tuple(_wide(value) for value in args)
            options = {name: _wide(value) for name, value in options.items()}
            if func is Tensor.to and len(args) > 1 and isinstance(args[1], Tensor):
                args = (args[0], args[1].device, *args[2:])
        return func(*args, **options)


def _wide(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROWER else value


def widened(value: Any) -> Any:
    """Floating tensors in float64, inside tuples, lists and dictionaries too; anything else as it is."""
    if isinstance(value, Tensor):
        return value.double() if value.is_floating_point() else value
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(widened(item) for item in value)
    if isinstance(value, list):
        return [widened(item) for item in value]
    if isinstance(value, dict):
        return {name: widened(item) for name, item in value.items()}
    return value
