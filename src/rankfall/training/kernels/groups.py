"""Attention of models whose heads differ in rank, from one tensor into one tensor: no splitting, no joining.

Models of one rank next to each other make a group, (models, heads, rank) with heads * rank the same for all. Each
group is a launch of its own; on a GPU the groups run side by side, since one of them rarely fills it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rankfall.training.kernels.launch import backward, forward, launch_for


@torch.library.custom_op("rankfall::grouped_heads", mutates_args=())
def grouped_heads(projected: Tensor, mask: Tensor | None, groups: list[int]) -> Tensor:
    """Queries, keys and values (3, M, B, n, columns) to what the heads mix, (M, B, n, columns).

    `groups` holds models, heads and rank of one group after the other.
    """
    out = torch.empty(projected.shape[1:], dtype=projected.dtype, device=projected.device)
    allowed = _small(mask)

    def launch(here: slice, heads: int, rank: int) -> None:
        q, k, v = projected[:, here].unflatten(-1, (heads, rank))
        target = out[here].unflatten(-1, (heads, rank))
        forward(q, k, v, None, allowed, rank**-0.5, launch_for(q, k, v, "forward"), target)

    _side_by_side(projected.device, [functools.partial(launch, *group) for group in _each(groups)])
    return out


@grouped_heads.register_fake
def _(projected: Tensor, mask: Tensor | None, groups: list[int]) -> Tensor:
    return torch.empty(projected.shape[1:], dtype=projected.dtype, device=projected.device)


@torch.library.custom_op("rankfall::grouped_heads_backward", mutates_args=())
def grouped_heads_backward(grad: Tensor, projected: Tensor, mask: Tensor | None, groups: list[int]) -> Tensor:
    """The gradient of the projections, (3, M, B, n, columns)."""
    found = torch.empty(projected.shape, dtype=projected.dtype, device=projected.device)
    allowed = _small(mask)
    grad = grad.contiguous()

    def launch(here: slice, heads: int, rank: int) -> None:
        q, k, v = projected[:, here].unflatten(-1, (heads, rank))
        grads = found[:, here].unflatten(-1, (heads, rank)).unbind()
        given = grad[here].unflatten(-1, (heads, rank))
        backward(given, q, k, v, None, allowed, rank**-0.5, launch_for(q, k, v, "backward"), grads)

    _side_by_side(projected.device, [functools.partial(launch, *group) for group in _each(groups)])
    return found


@grouped_heads_backward.register_fake
def _(grad: Tensor, projected: Tensor, mask: Tensor | None, groups: list[int]) -> Tensor:
    return torch.empty(projected.shape, dtype=projected.dtype, device=projected.device)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    projected, mask, ctx.groups = inputs
    ctx.save_for_backward(projected, mask)


def _gradient(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
    return grouped_heads_backward(grad, *ctx.saved_tensors, ctx.groups), None, None


grouped_heads.register_autograd(_gradient, setup_context=_keep)


def _each(groups: Sequence[int]) -> Iterator[tuple[slice, int, int]]:
    """Which models, how many heads and of what rank, group by group."""
    first = 0
    for models, heads, rank in zip(groups[::3], groups[1::3], groups[2::3], strict=True):
        yield slice(first, first + models), heads, rank
        first += models


def _small(mask: Tensor | None) -> Tensor | None:
    """The mask as the kernels read it: made here once, in the stream in which memory is handed out."""
    return None if mask is None else mask.to(torch.int8).contiguous()


def _side_by_side(device: torch.device, launches: Sequence[Callable[[], None]]) -> None:
    """On a GPU each launch in a stream of its own, from here and back to here; a captured graph keeps it so."""
    if device.type != "cuda" or len(launches) == 1:
        for launch in launches:
            launch()
        return
    here = torch.cuda.current_stream(device)
    begun = here.record_event()
    for stream, launch in zip(_streams(device, len(launches)), launches, strict=True):
        stream.wait_event(begun)
        with torch.cuda.stream(stream):
            launch()
        here.wait_stream(stream)


@functools.cache
def _streams(device: torch.device, count: int) -> tuple[torch.cuda.Stream, ...]:
    return tuple(torch.cuda.Stream(device) for _ in range(count))
