"""Which modules of a model are its blocks, and which of them to watch."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from rankfall.errors import RequestError, require


def block_stack(model: nn.Module) -> dict[str, nn.Module]:
    """The blocks by qualified name: the longest list of modules of one class."""
    best: dict[str, nn.Module] = {}
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and len({type(child) for child in module}) == 1:
            inner = {f"{name}.{key}".lstrip("."): child for key, child in module.named_children()}
            alike = all(any(True for _ in child.children()) for child in inner.values())
            if alike and len(inner) > len(best):
                best = inner
    return best


def chosen_blocks(model: nn.Module, blocks: int | Sequence[str | int] = 3) -> dict[str, nn.Module]:
    """A number of blocks spread evenly from first to last, or those of the given names or positions."""
    stack = block_stack(model)
    if isinstance(blocks, int):
        require(
            bool(stack) and blocks >= 1,
            required="a model with a list of blocks, and at least one to watch",
            got=f"{len(stack)} blocks found, {blocks} asked for",
            remedy="name the modules to watch: blocks=('encoder.layer.0', ...)",
        )
        names = list(stack)
        count = min(blocks, len(names))
        places = {round(index * (len(names) - 1) / max(count - 1, 1)) for index in range(count)}
        if count == 1:
            places = {len(names) - 1}
        return {names[place]: stack[names[place]] for place in sorted(places)}
    return dict(_named(model, stack, block) for block in blocks)


def _named(model: nn.Module, stack: dict[str, nn.Module], block: str | int) -> tuple[str, nn.Module]:
    names = list(stack)
    if isinstance(block, int) and -len(names) <= block < len(names):
        return names[block], stack[names[block]]
    modules = dict(model.named_modules())
    if isinstance(block, str) and block in modules:
        return block, modules[block]
    raise RequestError(
        required=f"the name of a module, or a position among {len(names)} blocks",
        got=block,
        remedy=f"the blocks are {', '.join(names[:3])} ..." if names else "the model has no list of blocks",
    )
