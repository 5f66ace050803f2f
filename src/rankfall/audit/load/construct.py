"""Build a model's skeleton without storage, and stop as soon as it outgrows what its files can fill."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from rankfall.audit.load.limits import LIMITS, Limits
from rankfall.errors import RequestError

# Modules a model may have for each tensor in its files: activations, dropouts and containers hold no tensors.
MODULES_PER_TENSOR = 20
SOME = 1_000


def skeleton(kind: Any, config: Any, *, elements: int, tensors: int, limits: Limits = LIMITS) -> nn.Module:
    """The model on the meta device, or a refusal once it needs more than the files hold."""
    with torch.device("meta"), _bounded(elements * limits.slack, (tensors + SOME) * MODULES_PER_TENSOR):
        return kind._from_config(config) if hasattr(kind, "_from_config") else kind.from_config(config)


@contextlib.contextmanager
def _bounded(elements: int, modules: int) -> Iterator[None]:
    made = {"elements": 0, "modules": 0}

    def count_parameter(module: nn.Module, name: str, parameter: Any) -> None:
        made["elements"] += 0 if parameter is None else parameter.numel()
        if made["elements"] > elements:
            raise _outgrown(f"a configuration that asks for more than {elements:,} parameters")

    def count_module(module: nn.Module, name: str, child: Any) -> None:
        made["modules"] += 1
        if made["modules"] > modules:
            raise _outgrown(f"a configuration that asks for more than {modules:,} modules")

    handles = [
        register_module_parameter_registration_hook(count_parameter),
        register_module_module_registration_hook(count_module),
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _outgrown(got: str) -> RequestError:
    return RequestError(
        required="a configuration that matches its weights",
        got=got,
        remedy="the files hold far less; do not trust this model",
    )
