"""One name for a layer wherever it is spoken of: tokens, heads and masks share number and module."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from rankfall.models.depth.rows import DepthRow, layer_title, layers_named
from rankfall.models.recording.blocks import BlockStack


class InLayer(Protocol):
    """A head, a mask, ...: what lies in a module of a layer."""

    @property
    def layer(self) -> int:
        """The number of its layer."""

    @property
    def module(self) -> str:
        """The attention module's name."""


Record = TypeVar("Record", bound=Any)


def as_in_tokens(
    records: Iterable[Record], rows: Sequence[DepthRow] = (), stacks: Sequence[BlockStack] = ()
) -> tuple[Record, ...]:
    """Heads or masks with the number of the block that they are in: layer l of tokens is what block l gave.

    A block is told by its module's name, among the rows and then among all stacks of the model, so that the self- and
    the cross-attention of a decoder's block have one number, which counts the decoder's blocks. A block that runs
    several times (shared weights) has a number for each time. Without any block of that name (weights that were not
    run) attention layers are counted from 1 in the order in which they run.
    """
    found = tuple(records)
    numbers = _numbers(rows, stacks)
    times: dict[str, set[int]] = {}
    for one in found:
        times.setdefault(one.module, set()).add(one.layer)
    turns = {name: {run: turn for turn, run in enumerate(sorted(runs))} for name, runs in times.items()}
    return tuple(
        replace(one, layer=_number(one.module, numbers, one.layer, turns[one.module][one.layer])) for one in found
    )


def layer_number(module: str, rows: Sequence[DepthRow], stacks: Sequence[BlockStack], run: int) -> int:
    """The number of the block that holds the module; the attention layer ran after `run` others."""
    return _number(module, _numbers(rows, stacks), run, 0)


def _numbers(rows: Sequence[DepthRow], stacks: Sequence[BlockStack]) -> dict[str, list[int]]:
    """By block, the number of its layer each time that it runs."""
    numbers: dict[str, list[int]] = {}
    for row in rows:
        known = numbers.setdefault(row.module, []) if row.module else []
        if row.layer not in known:
            known.append(row.layer)
    for stack in stacks:
        for place, name in enumerate(stack.names, 1):
            numbers.setdefault(name, [place])
    return numbers


def _number(module: str, numbers: dict[str, list[int]], run: int, turn: int) -> int:
    parts = module.split(".")
    names = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    known = next((numbers[name] for name in names if name in numbers), None)
    return run + 1 if known is None else known[min(turn, len(known) - 1)]


def shared_layers(records: Iterable[InLayer]) -> set[int]:
    """The numbers that stand for several attention modules: of two stacks, or of a block with cross-attention."""
    modules: dict[int, set[str]] = {}
    for one in records:
        modules.setdefault(one.layer, set()).add(one.module)
    return {layer for layer, names in modules.items() if len(names) > 1}


def module_noun(records: Sequence[InLayer]) -> str:
    """What to call the modules when they are counted: layers, where each layer of the only stack has one."""
    several = shared_layers(records) or len({list_of(one.module) for one in records}) > 1
    return "attention module" if several else "layer"


def place_told(one: InLayer, among: Iterable[InLayer]) -> str:
    """A layer in words: its number, and the module where `among` has several of that number."""
    return layer_title(one.layer, one.module) if one.layer in shared_layers(among) else f"layer {one.layer}"


def layers_told(some: Sequence[InLayer], among: Sequence[InLayer]) -> str:
    """`layers 2-6`; where numbers stand for several modules, with the list of blocks: `layers 1-3 of encoder`."""
    if not shared_layers(among):
        return layers_named([one.layer for one in some])
    lists: dict[str, list[int]] = {}
    for one in some:
        lists.setdefault(list_of(one.module), []).append(one.layer)
    return ", ".join(
        f"{layers_named(layers)} of {name}" if name else layers_named(layers) for name, layers in lists.items()
    )


def list_of(module: str) -> str:
    """The list of blocks that holds a module: its name up to the number of the block."""
    parts = module.split(".")
    return ".".join(parts[: next((at for at, part in enumerate(parts) if part.isdigit()), len(parts))])
