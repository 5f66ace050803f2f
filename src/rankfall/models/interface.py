"""The way into a model's attention: which modules compute it, and functions of ours around their calls.

Modules are told by what their code does, not by what their weights are called. Those that ask the library's attention
interface are reached there: they are told to use eager attention, and what the interface answers is wrapped. No name
of ours is registered: models ask for "eager" by name where they select keys sparsely, and under any other name select
none. Each module's own eager function, the interface's default, is handed to our function, so that soft caps, sinks
and position biases stay exactly as the model has them. Of modules that bypass the interface, the softmax or torch's
fused attention is seen.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Code that reaches the library's attention interface mentions one of these.
INTERFACE_NAMES = frozenset({"get_interface", "ALL_ATTENTION_FUNCTIONS"})


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention weights, by qualified name, in the model's order; shared ones once.

    These are the modules whose code calls the library's attention interface and, where a model bypasses it, the
    innermost modules whose class is named after attention.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if uses_interface(module) or (_named_after_attention(module) and not _holds_attention(module)):
            found[name] = module
    return found


def uses_interface(module: nn.Module) -> bool:
    """Whether this module's own code looks an attention function up in the library's interface."""
    kind: Any = type(module)
    return _class_uses_interface(kind)


def _named_after_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _holds_attention(module: nn.Module) -> bool:
    inner = (child for child in module.modules() if child is not module)
    return any(uses_interface(child) or _named_after_attention(child) for child in inner)


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
# Torch's fused attention, which is watched while it runs: its mask is then known too.
OWN = "sdpa"


@contextlib.contextmanager
def routed(model: nn.Module, route: Route, *, own: bool = False) -> Iterator[None]:
    """Every interface call that `model` makes goes through `route`; everything is restored on the way out.

    The function handed to `route` is the eager one. With `own` it is the one that the model uses anyway where that
    is torch's fused attention, so that the model computes bit for bit what it computes without us.
    """
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
    AttentionInterface.register(EAGER, looked_up)
    AttentionInterface.get_interface = answer
    if own:
        AttentionInterface.register(OWN, around(fused))
    try:
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
    """Whether `routed(..., own=True)` leaves the model's numbers as they are: its attention is fused, or eager."""
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


SOFTMAXES = frozenset({functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
FUSED = functional.scaled_dot_product_attention
FUSED_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")

Seen = Callable[..., None]
"""Called with what was seen of an attention call, by the names of `Call`'s fields."""


class BypassWatch(TorchFunctionMode):
    """Runs every torch function as it is and reports the attention among them while `watching()` says so."""

    def __init__(self, seen: Seen, watching: Callable[[], bool] = lambda: True) -> None:
        super().__init__()
        self._watching = watching
        self._seen = seen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        if self._watching():
            if func is FUSED:
                given = dict(zip(FUSED_ARGUMENTS, args, strict=False)) | options
                self._seen(
                    source="sdpa",
                    query=given.pop("query"),
                    key=given.pop("key"),
                    value=given.pop("value"),
                    mask=given.pop("attn_mask", None),
                    scaling=given.pop("scale", None),
                    output=result,
                    options=given,
                )
            elif func in SOFTMAXES and _over_keys(result, args, options):
                logits = args[0] if args else options["input"]
                self._seen(source="softmax", logits=logits, weights=result)
        return result


def _over_keys(weights: Tensor, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Attention normalises the last of at least three axes; a softmax over anything else is not attention."""
    axis = options.get("dim", args[1] if len(args) > 1 else None)
    return weights.ndim >= 3 and axis in (-1, weights.ndim - 1)
