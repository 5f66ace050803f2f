"""Launches of Triton kernels that repeat: what was compiled for some arguments is kept for the next of their kind.

`kernel[grid](...)` sorts its arguments, asks of each what the compiler specialises on, and looks up what it compiled
for all that: about 50 microseconds on the processor. Here the numbers among the arguments are fixed, and only the
tensors are left to ask, which takes half of that.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, final

import torch
from torch import Tensor

ALIGNMENT = 16
"""Bytes; Triton compiles a form of its own for pointers that are multiples of it."""
MOST_KEPT = 256


@final
class Launch:
    """A kernel on a grid with all its numbers fixed, to be called with its tensors, which stand in front of them.

    The first call with tensors of a kind goes through Triton, which gives back what it compiled; later ones launch
    that. Where nothing comes back, as from Triton's interpreter, or a launch of it is refused, as before Triton 3.3,
    every call goes through Triton.
    """

    def __init__(self, kernel: Any, grid: tuple[int, ...], numbers: tuple[Any, ...], named: dict[str, Any]) -> None:
        self._through_triton: Callable[..., Any] = kernel[grid]
        self._grid = (*grid, 1, 1)[:3]
        self._numbers = (*numbers, *(named[name] for name in kernel.arg_names if name in named))
        self._options = {name: value for name, value in named.items() if name not in kernel.arg_names}
        self._direct: dict[Hashable, Callable[..., object]] = {}
        self._refused = False

    def __call__(self, *tensors: Tensor) -> None:
        """Launch on the current device and stream."""
        kind = _kind(tensors)
        direct = self._direct.get(kind)
        if direct is not None:
            try:
                direct(*tensors, *self._numbers)
            except Exception:  # whatever another version of Triton throws; an error of the GPU comes again below
                self._direct.clear()
                self._refused = True
            else:
                return
        compiled = self._through_triton(*tensors, *self._numbers, **self._options)
        if not self._refused and hasattr(compiled, "__getitem__"):
            self._direct[kind] = compiled[self._grid]


@lru_cache(maxsize=MOST_KEPT, typed=True)
def launch(kernel: Any, grid: tuple[int, ...], *numbers: Any, **named: Any) -> Launch:
    """The launch of a kernel with these numbers, by place or, behind those, by name; options like num_warps too."""
    return Launch(kernel, grid, numbers, named)


def _kind(tensors: tuple[Tensor, ...]) -> Hashable:
    """All that decides which compiled form tensors take."""
    device = torch.cuda.current_device() if tensors[0].is_cuda else None
    return (device, *[(one.dtype, one.data_ptr() % ALIGNMENT == 0) for one in tensors])
