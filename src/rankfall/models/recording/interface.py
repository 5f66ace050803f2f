"""The way into a model's attention: which modules compute it, and functions of ours around their calls.

Modules are told by what their code does, not by what their weights are called. Those that ask the library's attention
interface are reached there: they are told to use eager attention, and what the interface answers is wrapped. No name
of ours is registered: models ask for "eager" by name where they select keys sparsely, and under any other name select
none. Each module's own eager function, the interface's default, is handed to our function, so that soft caps, sinks
and position biases stay exactly as the model has them. Modules that bypass the interface are reached at torch's own
attention functions.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from torch import Tensor, nn

from rankfall.models.recording.torch_attention import Reroute

# Code that reaches the library's attention interface mentions one of these.
INTERFACE_NAMES = frozenset({"get_interface", "ALL_ATTENTION_FUNCTIONS"})


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention weights, by qualified name, in the model's order; shared ones once.

    These are the modules whose code calls the library's attention interface and, where a model bypasses it, the
    innermost modules whose class is named after attention. One without weights inside another is a part of that.
    """
    found: dict[str, nn.Module] = {}
    parts: set[int] = set()
    for name, module in model.named_modules():
        named = _named_after_attention(module) and id(module) not in parts and not _holds_attention(module)
        if uses_interface(module) or named:
            found[name] = module
            parts |= {id(inner) for inner in module.modules()}
    return found


def uses_interface(module: nn.Module) -> bool:
    """Whether this module's own code looks an attention function up in the library's interface."""
    kind: Any = type(module)
    return _class_uses_interface(kind)


def _named_after_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _holds_attention(module: nn.Module) -> bool:
    inner = (child for child in module.modules() if child is not module)
    return any(uses_interface(child) or (_named_after_attention(child) and _has_weights(child)) for child in inner)


def _has_weights(module: nn.Module) -> bool:
    return any(True for _ in module.parameters())


@cache
def _class_uses_interface(kind: Any) -> bool:
    for ancestor in kind.__mro__:
        # The library's base class of all models talks about the interface without computing attention.
        if ancestor is nn.Module or ancestor.__module__ == "transformers.modeling_utils":
            return False
        for member in vars(ancestor).values():
            if any(INTERFACE_NAMES & set(code.co_names) for code in _codes(member)):
                return True
    return False


def _codes(member: object) -> Iterator[CodeType]:
    while hasattr(member, "__wrapped__"):
        member = member.__wrapped__
    if isinstance(member, FunctionType):
        yield member.__code__


Eager = Callable[..., tuple[Any, Any]]
Route = Callable[..., tuple[Tensor, Tensor | None]]
"""Called as route(eager, module, query, key, value, mask, **options) in place of eager(module, query, ...)."""

EAGER = "eager"

# What is changed while a model is watched belongs to the whole process: one thread at a time.
ALONE = threading.RLock()

# Torch's fused attention, which is watched while it runs: its mask is then known too.
OWN = "sdpa"


@contextlib.contextmanager
def routed(model: nn.Module, route: Route) -> Iterator[None]:
    """Every attention call that `model` makes goes through `route`, at the interface or at torch's own functions.

    The function handed to `route` is the eager one, or torch's own. Everything is restored on the way out.
    """
    with at_interface(model, route), Reroute(route, model):
        yield


@contextlib.contextmanager
def at_interface(model: nn.Module, route: Route, *, own: bool = False) -> Iterator[None]:
    """Calls at the library's interface go through `route`, others do not.

    The function handed to `route` is the eager one. With `own` it is the one that the model uses anyway where that
    is torch's fused attention, so that the model computes bit for bit what it computes without us.
    """
    with ALONE, _at_interface(model, route, own):
        yield


@contextlib.contextmanager
def _at_interface(model: nn.Module, route: Route, own: bool) -> Iterator[None]:
    from transformers import AttentionInterface

    ask = AttentionInterface.get_interface
    fused = AttentionInterface._global_mapping[OWN]
    indexed = AttentionInterface._global_mapping.get(EAGER)
    members = {id(module) for module in model.modules()}

    def around(function: Eager) -> Callable[..., tuple[Tensor, Tensor | None]]:
        def attention(
            module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any = None, **options: Any
        ) -> tuple[Tensor, Tensor | None]:
            # Both functions are reached by other models too.
            if id(module) not in members:
                return function(module, query, key, value, attention_mask, **options)
            return route(function, module, query, key, value, attention_mask, **options)

        return attention

    def answer(self: Any, implementation: str, default: Eager) -> Any:
        if implementation != EAGER:
            return ask(self, implementation, default)
        # Around another recording's function, where recordings are nested.
        return around(default if indexed is None else ask(self, implementation, default))

    def looked_up(module: nn.Module, *tensors: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        # Reached by modules that index the interface instead of asking it: the default is in the module's own file.
        return around(sys.modules[type(module).__module__].eager_attention_forward)(module, *tensors, **options)

    configs = [config for config in _switchable_configs(model) if not (own and config._attn_implementation == OWN)]
    before = [config._attn_implementation for config in configs]
    try:
        AttentionInterface.register(EAGER, looked_up)
        AttentionInterface.get_interface = answer
        if own:
            AttentionInterface.register(OWN, around(fused))
        for config in configs:
            config._attn_implementation_internal = EAGER
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation_internal = implementation
        AttentionInterface.get_interface = ask
        AttentionInterface._global_mapping[OWN] = fused
        if indexed is None:
            AttentionInterface._global_mapping.pop(EAGER, None)
        else:
            AttentionInterface._global_mapping[EAGER] = indexed


def runs_as_is(model: nn.Module) -> bool:
    """Whether `at_interface(..., own=True)` changes none of the model's numbers: its attention is fused, or eager."""
    return all(config._attn_implementation in (OWN, EAGER, None) for config in _switchable_configs(model))


def _switchable_configs(model: nn.Module) -> list[Any]:
    """Configurations of the submodels that follow the interface; those of bypassing models are left alone.

    A single attention module, taken out of its model, counts too.
    """
    from transformers import PreTrainedModel

    found: dict[int, Any] = {}
    lone = getattr(model, "config", None)
    if uses_interface(model) and hasattr(lone, "_attn_implementation_internal"):
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
