"""Where a model's blocks are: the list of modules that it runs one after the other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

from torch import nn

from rankfall.errors import RequestError


@final
@dataclass(frozen=True, eq=False)
class Stack:
    """Blocks of one kind, in order. A block that is called several times (shared weights) is listed once."""

    name: str
    blocks: tuple[nn.Module, ...]


def find_stacks(model: nn.Module) -> list[Stack]:
    """The outermost lists of modules that hold attention; of any that hold matrices, if none holds attention."""
    from rankfall.models.interface.modules import attention_modules

    stacks = [Stack(name, tuple(items)) for name, items in _outermost(model, "") if len(items) > 0]
    # One block tells for all: looking through the whole model would take longer than running some of it.
    holding = [stack for stack in stacks if attention_modules(stack.blocks[0])]
    if not holding:
        holding = [stack for stack in stacks if any(p.ndim == 2 for p in stack.blocks[0].parameters())]
    if not holding:
        raise RequestError(
            required="a model made of blocks (a ModuleList of layers)",
            got=type(model).__name__,
            remedy="pass the part of the model that holds its layers",
        )
    return holding


def choose_stack(model: nn.Module, name: str | None = None) -> Stack:
    """The stack whose name contains `name`; without one, the first of the longest."""
    stacks = find_stacks(model)
    if name is None:
        return max(stacks, key=lambda stack: len(stack.blocks))
    for stack in stacks:
        if name in stack.name:
            return stack
    known = ", ".join(stack.name for stack in stacks)
    raise RequestError(required=f"a stack among {known}", got=name, remedy="give part of its name")


def _outermost(module: nn.Module, path: str) -> Iterator[tuple[str, nn.ModuleList]]:
    for name, child in module.named_children():
        where = f"{path}.{name}" if path else name
        if isinstance(child, nn.ModuleList):
            yield where, child
        else:
            yield from _outermost(child, where)
