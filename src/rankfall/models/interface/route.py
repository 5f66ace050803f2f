"""Put a function of ours between a model and its eager attention, for as long as a context lasts.

A name is registered with both of the library's interfaces: with the attention interface, so that modules ask for
it, and with the mask interface as the eager mask, because a name without a mask function silently gets no mask.
Each module's own eager function, the interface's default, is handed to ours, so that soft caps, sinks and position
biases stay exactly as the model has them.
"""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from rankfall.models.interface.modules import speaks_interface

Eager = Callable[..., tuple[Any, Any]]
Route = Callable[..., tuple[Tensor, Tensor | None]]
"""Called as route(eager, module, query, key, value, mask, **options) in place of eager(module, query, ...)."""

_serial = itertools.count()


@contextlib.contextmanager
def routed(model: nn.Module, route: Route) -> Iterator[None]:
    """Every interface call that `model` makes goes through `route`; everything is restored on the way out."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import eager_mask

    name = f"rankfall_{next(_serial)}"
    ask = AttentionInterface.get_interface

    def around(eager: Eager) -> Callable[..., tuple[Tensor, Tensor | None]]:
        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
        ) -> tuple[Tensor, Tensor | None]:
            return route(eager, module, query, key, value, attention_mask, **options)

        return attention

    def answer(self: Any, implementation: str, default: Eager) -> Any:
        return around(default) if implementation == name else ask(self, implementation, default)

    def looked_up(module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        # Reached by modules that index the interface instead of asking it: the default is in the module's own file.
        return around(sys.modules[type(module).__module__].eager_attention_forward)(module, *tensors, **options)

    configs = _switchable_configs(model)
    before = [config._attn_implementation for config in configs]
    AttentionInterface.register(name, looked_up)
    AttentionMaskInterface.register(name, eager_mask)
    AttentionInterface.get_interface = answer
    try:
        for config in configs:
            config._attn_implementation_internal = name
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        AttentionInterface.get_interface = ask
        AttentionInterface._global_mapping.pop(name, None)
        AttentionMaskInterface._global_mapping.pop(name, None)


def _switchable_configs(model: nn.Module) -> list[Any]:
    """Configurations of the submodels that follow the interface; those of bypassing models are left alone.

    A single attention module, taken out of its model, counts too.
    """
    from transformers import PreTrainedModel

    found: dict[int, Any] = {}
    lone = getattr(model, "config", None)
    if speaks_interface(model) and hasattr(lone, "_attn_implementation_internal"):
        found[id(lone)] = lone
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and module._can_set_attn_implementation():
            for config in _with_parts(module.config):
                found[id(config)] = config
    for module in model.modules():
        if isinstance(module, PreTrainedModel) and not module._can_set_attn_implementation():
            found.pop(id(module.config), None)
    return list(found.values())


def _with_parts(config: Any) -> Iterator[Any]:
    yield config
    for key in config.sub_configs:
        part = getattr(config, key, None)
        if part is not None and hasattr(part, "_attn_implementation_internal"):
            yield from _with_parts(part)
