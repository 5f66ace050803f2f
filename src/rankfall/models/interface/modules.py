"""Which modules of a model hold attention, told by what their code does, not by what their weights are called."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any

from torch import nn

# Code that reaches the library's attention interface mentions one of these.
INTERFACE_NAMES = frozenset({"get_interface", "ALL_ATTENTION_FUNCTIONS"})


def attention_modules(model: nn.Module) -> dict[str, nn.Module]:
    """The modules that compute attention weights, by qualified name, in the model's order; shared ones once.

    These are the modules whose code calls the library's attention interface and, where a model bypasses it, the
    innermost modules whose class is named after attention.
    """
    found: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if speaks_interface(module) or (_named_after_attention(module) and not _holds_attention(module)):
            found[name] = module
    return found


def expected_attention_layers(model: nn.Module) -> int:
    """How many modules ought to make attention calls."""
    return len(attention_modules(model))


def speaks_interface(module: nn.Module) -> bool:
    """Whether this module's own code looks an attention function up in the library's interface."""
    kind: Any = type(module)
    return _class_speaks(kind)


def _named_after_attention(module: nn.Module) -> bool:
    return "attention" in type(module).__name__.lower()


def _holds_attention(module: nn.Module) -> bool:
    inner = (child for child in module.modules() if child is not module)
    return any(speaks_interface(child) or _named_after_attention(child) for child in inner)


@cache
def _class_speaks(kind: Any) -> bool:
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
