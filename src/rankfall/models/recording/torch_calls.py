"""Between a model and torch's functions: who watches or replaces their calls, and who keeps them in float64."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

NARROWER = frozenset({torch.float32, torch.float16, torch.bfloat16})
NARROWING = frozenset({Tensor.float, Tensor.half, Tensor.bfloat16})


class TorchCalls(TorchFunctionMode):
    """While it is entered, every call of a torch function comes to `call`, which must return its result."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return self.call(func, args, dict(kwargs or {}))

    @abstractmethod
    def call(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What the caller of `func(*args, **options)` gets."""


@final
class KeepFloat64(TorchCalls):
    """Every cast of a float64 tensor to a narrower type keeps float64; everything else is as it is.

    `.double()` alone is not enough: many softmaxes and norms of the library cast what they are given to float32 and
    back, which leaves a floor near 1e-7 under everything measured.
    """

    def call(self, func: Callable[..., Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
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
