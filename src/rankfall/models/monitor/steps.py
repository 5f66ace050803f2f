"""Which training step a forward pass belongs to."""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import Optimizer


class Steps:
    """Counts steps of the optimizers that hold the model's parameters.

    Passes between two of them, as with accumulated gradients, are one step. Until an optimizer of torch has stepped,
    a pass is a step, unless gradients of the pass before still wait for their optimizer.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._step = -1
        self._passes = 0
        self._stepped = False
        # Of each optimizer, how many passes there were when it last stepped; None: it is another model's.
        self._optimizers: WeakKeyDictionary[Optimizer, int | None] = WeakKeyDictionary()

    def of_this_pass(self) -> int:
        """The step of the forward pass that begins now; to be called once for each pass in training mode."""
        seen = any(passes is not None for passes in self._optimizers.values())
        if self._passes == 0 or (self._stepped if seen else not self._waiting()):
            self._step += 1
        self._stepped = False
        self._passes += 1
        return self._step

    def _waiting(self) -> bool:
        return any(parameter.grad is not None for parameter in self._model.parameters())

    def stepped(self, optimizer: Optimizer) -> bool:
        """To be called after each step of any optimizer; False if it stepped twice and no pass was seen between."""
        if optimizer not in self._optimizers:
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            ours = any(id(parameter) in held for parameter in self._model.parameters())
            self._optimizers[optimizer] = -1 if ours else None
        before = self._optimizers[optimizer]
        if before is None:
            return True
        self._stepped = True
        self._optimizers[optimizer] = self._passes
        return before != self._passes


def in_backward() -> bool:
    """Whether a backward pass is running: what checkpointing runs again there was seen before."""
    return bool(torch._C._current_graph_task_id() != -1)
