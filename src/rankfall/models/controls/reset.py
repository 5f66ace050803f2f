"""Fresh weights for a module of anyone's, by its parts' own initialisation, in place of the ones it has."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.models.recording.blocks import is_norm

# What modules call the method that draws their own parameters anew.
RESETS = ("reset_parameters", "_reset_parameters")


@contextlib.contextmanager
def fresh_weights(network: nn.Module, seed: int = 0) -> Iterator[tuple[str, ...]]:
    """Inside, the network has fresh weights, the same for the same seed; afterwards its own, whatever happened.

    They wait in the host's memory meanwhile: there is no second model. Yields the names of parameters for which
    nobody says how they start. Inner modules come first, each by its own `reset_parameters`, then the network's
    `_init_weights(module)`, where it has one. Of what is left, matrices are drawn from a normal distribution with
    their own mean and deviation, and single rows (gains, biases) stay as they are; both are named.
    """
    with _kept_aside(network):
        # The generators of all devices are as they were afterwards.
        with torch.inference_mode(False), torch.random.fork_rng(), torch.no_grad():
            torch.manual_seed(seed)
            left = _reset(network)
        yield left


@contextlib.contextmanager
def _kept_aside(network: nn.Module) -> Iterator[None]:
    """Parameters and buffers are the same objects with the same numbers afterwards."""
    tables: list[dict[str, Any]] = [
        table for module in network.modules() for table in (module._parameters, module._buffers)
    ]
    before = [dict(table) for table in tables]
    own = {
        id(one): (one, one.detach().to("cpu", copy=True))
        for table in before
        for one in table.values()
        if one is not None
    }
    try:
        yield
    finally:
        with torch.inference_mode(False), torch.no_grad():
            for table, was in zip(tables, before, strict=True):
                table.clear()
                table.update(was)
            for tensor, numbers in own.values():
                tensor.data.copy_(numbers)


def _reset(network: nn.Module) -> tuple[str, ...]:
    touched: set[int] = set()
    for module in reversed(list(network.modules())):
        for name in RESETS:
            if _callable_alone(reset := getattr(module, name, None)):
                reset()
                touched |= {id(one) for one in _own(module)}
                break
    left = {name: one for name, one in network.named_parameters() if id(one) not in touched}
    norms = {id(one) for module in network.modules() if is_norm(module) for one in _own(module)}
    for one in left.values():
        if one.ndim > 1 and id(one) not in norms:
            one.copy_(one.mean() + one.std() * torch.randn_like(one))
    initialise = getattr(network, "_init_weights", None)
    if callable(initialise) and len(inspect.signature(initialise).parameters) == 1:
        network.apply(initialise)
    return tuple(left)


def not_reset(names: tuple[str, ...]) -> str:
    """Which parameters nobody says the start of, for people; nothing, if there are none."""
    if not names:
        return ""
    shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    return f"; {len(names)} parameters without an initialisation of their own kept their size or value ({shown})"


def _callable_alone(method: Any) -> bool:
    if not callable(method):
        return False
    parameters = inspect.signature(method).parameters.values()
    gathering = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return all(one.default is not one.empty or one.kind in gathering for one in parameters)


def _own(module: nn.Module) -> list[Tensor]:
    """The parameters that a reset of this module draws: its own; torch's multi-head attention and transformer draw
    some of their children's too, which draw them by themselves before."""
    return list(module.parameters(recurse=False))
