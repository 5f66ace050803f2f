"""Where a model's blocks are: the modules that the token stream runs through, one after the other."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.errors import RequestError, require
from rankfall.models.recording.interface import attention_modules


def is_tokens(value: Any) -> bool:
    """Whether this is a floating-point tensor of shape (b, n, d)."""
    return isinstance(value, Tensor) and value.ndim == 3 and value.is_floating_point()


def first_tokens(*values: Any) -> Tensor | None:
    """The tokens (b, n, d) that a module takes or gives: the first such tensor, also inside tuples and mappings."""
    for value in values:
        if is_tokens(value):
            return value
        inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, (tuple, list)) else ()
        if (found := first_tokens(*inner)) is not None:
            return found
    return None


def stream_of(*values: Any) -> Tensor | None:
    """What of a block's arguments or results is the token stream: the first floating tensor, as it is."""
    first = next((value for value in _leaves(values) if value.is_floating_point()), None)
    return first if first is not None and first.ndim in (2, 3, 4) else first_tokens(*values)


def as_tokens(stream: Tensor, ids: Tensor | None = None) -> Tensor:
    """A stream as tokens (b, n, d). `ids` (b, n) tell several streams a token, which become one long vector each,
    from images that run through blocks as grids (b, h, w, d), which become rows; (n, d) is one text."""
    if stream.ndim == 2:
        return stream[None]
    if stream.ndim == 4:
        if ids is not None and stream.shape[:2] == ids.shape:
            return stream.flatten(2)
        if ids is not None and stream.shape[1:3] == ids.shape:
            return stream.movedim(0, 2).flatten(2)
        return stream.flatten(1, 2)
    return stream


def _leaves(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (Mapping, tuple, list)):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _leaves(inner)


def is_linear(module: nn.Module) -> bool:
    """A leaf with one weight matrix that is applied to tokens: nn.Linear, GPT-2's Conv1D, quantised maps."""
    weight = getattr(module, "weight", None)
    return (
        is_leaf(module)
        and isinstance(weight, Tensor)
        and weight.ndim == 2
        and not isinstance(module, nn.Embedding | nn.Bilinear)
    )


def is_norm(module: nn.Module) -> bool:
    """A leaf named after a norm. Its shape alone cannot tell: some norms have no parameters."""
    return "norm" in type(module).__name__.lower() and is_leaf(module)


@final
@dataclass(frozen=True, eq=False)
class BlockStack:
    """Blocks in order and their names; one that is called several times (shared weights) is listed once."""

    name: str
    names: tuple[str, ...]
    blocks: tuple[nn.Module, ...]

    def holds(self, module: str) -> bool:
        """Whether a module, by its name, lies in one of the blocks."""
        return f"{module}.".startswith(tuple(f"{name}." for name in self.names))

    @property
    def sequence_first(self) -> tuple[nn.MultiheadAttention, ...]:
        """The multi-head attention inside that takes its tokens as (n, b, d), as it says itself."""
        inner = (module for block in self.blocks for module in block.modules())
        return tuple(one for one in inner if isinstance(one, nn.MultiheadAttention) and not one.batch_first)


def find_stacks(model: nn.Module) -> list[BlockStack]:
    """The outermost lists of modules that hold attention; of any that hold matrices, if none holds attention.

    Lists inside the blocks of another list, such as the experts of a mixture, do not count.
    """
    found = _stacks(model)
    if not found:
        raise RequestError(
            required="a model made of blocks (a ModuleList, ModuleDict or Sequential of layers)",
            got=f"{type(model).__name__}, 0 blocks found",
            remedy="put its layers into an nn.ModuleList, or pass the part of the model that holds them",
        )
    return found


def choose_stack(model: nn.Module, name: str | None = None) -> BlockStack:
    """The stack whose name contains `name`; without one, the first of the longest."""
    stacks = find_stacks(model)
    if name is None:
        return max(stacks, key=lambda stack: len(stack.blocks))
    for stack in stacks:
        if name in stack.name:
            return stack
    known = ", ".join(stack.name for stack in stacks)
    raise RequestError(required=f"a stack among {known}", got=name, remedy="give part of its name")


def same_stack(model: nn.Module, like: BlockStack) -> BlockStack:
    """The stack of that name in a model of the same architecture."""
    return next(stack for stack in find_stacks(model) if stack.name == like.name)


def stacks_that_run(
    model: nn.Module, inputs: Mapping[str, Any], ids_name: str | None = "input_ids"
) -> list[BlockStack]:
    """The stacks through which these inputs run, the one to look at first: the one that the input's own tokens run
    through, if there are token ids (under `ids_name`), and of those the first of the longest."""
    stacks = find_stacks(model)
    if len(stacks) == 1:
        return stacks
    entered: dict[int, Tensor | None] = {}
    ids = None if ids_name is None else inputs.get(ids_name)

    def entering(block: nn.Module, args: Any, kwargs: Any) -> None:
        stream = stream_of(args, kwargs)
        entered.setdefault(id(block), None if stream is None else as_tokens(stream, ids))

    handles = [
        stack.blocks[0].register_forward_pre_hook(entering, with_kwargs=True) for stack in stacks if stack.blocks
    ]
    try:
        with torch.inference_mode():
            model(**inputs)
    finally:
        for handle in handles:
            handle.remove()
    ran = [stack for stack in stacks if entered.get(id(stack.blocks[0])) is not None]

    def rank(stack: BlockStack) -> tuple[bool, int]:
        tokens = entered[id(stack.blocks[0])]
        assert tokens is not None
        return ids is not None and tokens.shape[:2] == ids.shape, len(stack.blocks)

    # Sorting keeps the model's own order among equals.
    return sorted(ran, key=rank, reverse=True)


def body_of(model: nn.Module) -> nn.Module:
    """The model without its head, where that takes the same inputs: what some classes call their base model is an
    inner part that does not."""
    body = getattr(model, "base_model", model)
    if not isinstance(body, nn.Module):
        return model
    main = getattr(model, "main_input_name", None)
    return body if main is None or main in inspect.signature(body.forward).parameters else model


def choose_blocks(model: nn.Module, wanted: int | Sequence[str | int]) -> dict[str, nn.Module]:
    """By name: so many blocks, spread evenly from first to last (one: the last), or those of the given names or
    positions; a name may be that of any module."""
    if isinstance(wanted, int):
        require(wanted >= 1, required="at least one block", got=wanted, remedy="name the blocks, or give a number")
        stack = choose_stack(model)
        last = len(stack.blocks) - 1
        count = min(wanted, last + 1)
        places = {last} if count == 1 else {round(index * last / (count - 1)) for index in range(count)}
        return {stack.names[place]: stack.blocks[place] for place in sorted(places)}
    names = choose_stack(model).names if _stacks(model) else ()
    modules = dict(model.named_modules())
    chosen: dict[str, nn.Module] = {}
    for block in wanted:
        name = names[block] if isinstance(block, int) and -len(names) <= block < len(names) else block
        if not isinstance(name, str) or name not in modules:
            raise RequestError(
                required=f"the name of a module, or a position among {len(names)} blocks",
                got=block,
                remedy=f"the blocks are {', '.join(names[:3])} ..." if names else "the model has no list of blocks",
            )
        chosen[name] = modules[name]
    return chosen


def _stacks(model: nn.Module) -> list[BlockStack]:
    stacks = list(_outermost(model, ""))
    # Looking through the whole model would take longer than running some of it. Of hybrids the first layer may be
    # recurrent; the last one is not, or the one before it.
    holding = [stack for stack in stacks if any(map(attention_modules, (stack.blocks[0], *stack.blocks[-2:])))]
    if not holding:
        holding = [stack for stack in stacks if any(p.ndim == 2 for p in stack.blocks[0].parameters())]
        # A list of bare linear maps is rather a set of output layers than a stack of blocks.
        holding = [stack for stack in holding if not is_leaf(stack.blocks[0])] or holding
    return holding


def _outermost(module: nn.Module, path: str) -> Iterator[BlockStack]:
    items = _in_turn(module)
    if items:
        names = tuple(f"{path}.{name}" if path else name for name in items)
        yield BlockStack(path, names, tuple(items.values()))
        return
    for name, child in module.named_children():
        yield from _outermost(child, f"{path}.{name}" if path else name)


def _in_turn(module: nn.Module) -> dict[str, nn.Module]:
    """The blocks of a list; of a Sequential or ModuleDict those of its commonest class, where two or more are not
    leaves."""
    if isinstance(module, nn.ModuleList):
        return dict(module.named_children())
    if not isinstance(module, nn.Sequential | nn.ModuleDict):
        return {}
    plain = dict(module.named_children())
    for items in (dict(_flattened(module)), plain) if isinstance(module, nn.Sequential) else (plain,):
        kinds = Counter(type(item) for item in items.values() if not is_leaf(item))
        if kinds and (commonest := kinds.most_common(1)[0])[1] > 1:
            return {name: item for name, item in items.items() if type(item) is commonest[0]}
    return {}


def _flattened(module: nn.Sequential) -> Iterator[tuple[str, nn.Module]]:
    """What runs in turn, with the Sequentials inside it taken apart."""
    for name, child in module.named_children():
        if isinstance(child, nn.Sequential):
            yield from ((f"{name}.{inner}", item) for inner, item in _flattened(child))
        else:
            yield name, child


def is_leaf(module: nn.Module) -> bool:
    """Whether there are no modules inside this one."""
    return not any(True for _ in module.children())
