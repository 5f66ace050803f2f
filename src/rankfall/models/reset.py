"""Fresh weights for a module of anyone's, by its parts' own initialisation."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import torch
from torch import Tensor, nn

from rankfall.models.blocks import is_norm

# What modules call the method that draws their own parameters anew.
RESETS = ("reset_parameters", "_reset_parameters")


def fresh_copy(network: nn.Module, seed: int = 0) -> tuple[nn.Module, tuple[str, ...]]:
    """A copy with fresh weights, and the names of parameters for which nobody says how they start.

    Inner modules first, each by its own `reset_parameters`, then the network's `_init_weights(module)`, where it has
    one. Of what is left, matrices are drawn from a normal distribution with their own mean and deviation, and single
    rows (gains, biases) stay as they are; both are named.
    """
    twin = copy.deepcopy(network)
    # The generators of all devices are as they were afterwards.
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        touched: set[int] = set()
        for module in reversed(list(twin.modules())):
            for name in RESETS:
                if _callable_alone(reset := getattr(module, name, None)):
                    reset()
                    touched |= {id(one) for one in _own(module)}
                    break
        left = {name: one for name, one in twin.named_parameters() if id(one) not in touched}
        norms = {id(one) for module in twin.modules() if is_norm(module) for one in _own(module)}
        for one in left.values():
            if one.ndim > 1 and id(one) not in norms:
                one.copy_(one.mean() + one.std() * torch.randn_like(one))
        initialise = getattr(twin, "_init_weights", None)
        if callable(initialise) and len(inspect.signature(initialise).parameters) == 1:
            twin.apply(initialise)
    return twin.eval(), tuple(left)


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
