"""Which training step a forward pass belongs to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook


class Steps:
    """Counts steps of the optimizers that hold the model's parameters.

    Passes between two of them, as with accumulated gradients, are one step. Until an optimizer of torch has stepped,
    a pass is a step, unless gradients of the pass before still wait for their optimizer.
    `unseen` is called when an optimizer steps twice and no pass was seen between.
    """

    def __init__(self, model: nn.Module, unseen: Callable[[], None]) -> None:
        self._model = model
        self._unseen = unseen
        self._step = -1
        self._passes = 0
        self._stepped = False
        # Of each optimizer, how many passes there were when it last stepped; None: it is another model's.
        self._optimizers: WeakKeyDictionary[Optimizer, int | None] = WeakKeyDictionary()

    def watch(self) -> Callable[[], None]:
        """Follow the optimizers from now on; returns what ends it."""
        remove: Callable[[], None] = register_optimizer_step_post_hook(self._after_optimizer).remove
        return remove

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

    def _after_optimizer(self, optimizer: Optimizer, *_: Any) -> None:
        if torch.compiler.is_compiling():
            return
        if optimizer not in self._optimizers:
            held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
            ours = any(id(parameter) in held for parameter in self._model.parameters())
            self._optimizers[optimizer] = -1 if ours else None
        before = self._optimizers[optimizer]
        if before is not None:
            self._stepped = True
            self._optimizers[optimizer] = self._passes
            if before == self._passes:
                self._unseen()


def in_backward() -> bool:
    """Whether a backward pass is running: what checkpointing runs again there was seen before."""
    return bool(torch._C._current_graph_task_id() != -1)
