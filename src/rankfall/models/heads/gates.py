"""A gate between attention and W_O: every coordinate of what attention gave is multiplied by the token's number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.models.recording.interface import Eager
from rankfall.models.recording.replay import Replay

# Relative: replays are float64.
SAME = 1e-6


def output_gate(replay: Replay, run: Callable[[Any], object], width: int) -> Tensor | None:
    """The gates (N, width) of the tokens that `run` sends through the module, calling it with a route; None where
    what stands between attention and the next linear map is no gate.

    A gate multiplies: it is what the map is fed when attention gives ones, and for anything else that attention might
    give the map must be fed the product.
    """
    gates = _fed(replay, run, torch.ones_like, width)
    if gates is None or not bool(gates.isfinite().all()):
        return None
    generator = torch.Generator().manual_seed(3)
    drawn: list[Tensor] = []

    def anything(attended: Tensor) -> Tensor:
        made = torch.randn(attended.shape, generator=generator, dtype=attended.dtype).to(attended.device)
        drawn.append(made.reshape(-1, width))
        return made

    fed = _fed(replay, run, anything, width)
    if fed is None:
        return None
    wanted = torch.cat(drawn) * gates
    largest = float(wanted.abs().max()) or 1.0
    return gates if float((fed - wanted).abs().max()) <= SAME * largest else None


def _fed(
    replay: Replay, run: Callable[[Any], object], attended: Callable[[Tensor], Tensor], width: int
) -> Tensor | None:
    """What the map after attention is fed when attention gives something else."""
    seen: list[Tensor] = []

    def route(eager: Eager, module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        result, weights = eager(module, *tensors, **options)
        return attended(result), weights

    assert replay.projection is not None
    handle = replay.projection.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    try:
        run(route)
    finally:
        handle.remove()
    if not seen or any(one.shape[-1] != width for one in seen):
        return None
    return torch.cat([one.reshape(-1, width) for one in seen])
