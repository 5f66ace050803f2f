"""Which inputs of a forward pass are ids, and how many ids each may hold: the tables in which they are looked up."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rankfall.models.recording.torch_attention import as_written

WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})
ATEN = torch.ops.aten
# Each with the places of the table and of the ids among its arguments.
LOOKUPS = {
    ATEN.embedding.default: (0, 1),
    ATEN._embedding_bag.default: (0, 1),
    ATEN._embedding_bag_forward_only.default: (0, 1),
    ATEN.index_select.default: (0, 2),
    ATEN.index.Tensor: (0, 1),
}
# What these give has the shape of an id, and nothing of it.
SHAPED_ALIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand", "new_", "argmax", "argmin", "argsort")


def looked_up(network: nn.Module, call: Mapping[str, Any]) -> dict[str, int]:
    """The integer inputs that are looked up in tables, each with how many ids the smallest of its tables has.

    Ids are followed through everything that the pass does with whole numbers: models shift them, put tokens around
    them, or keep several tables in one. What comes of comparing them, such as positions counted past padding, is no
    id any more.
    """
    # Copies: one tensor may be given under two names.
    ids = {name: value.clone() for name, value in call.items() if isinstance(value, Tensor) and value.dtype in WHOLE}
    with torch.inference_mode(), as_written(), _Following(ids) as following:
        network(**{**call, **ids})
    return following.sizes


@final
class _Following(TorchDispatchMode):
    """By the memory in which they lie: a table of ids that is filled piece by piece holds those of each piece."""

    # Attention that is compiled from a function of scores is such an operator.
    supports_higher_order_operators = True

    def __init__(self, ids: Mapping[str, Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[str, int] = {}
        self._ids = ids
        self._names = {_memory(value): frozenset({name}) for name, value in ids.items()}
        # Memory that is given back would be used again for something else.
        self._kept: list[Tensor] = list(ids.values())

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        names = self._of((args, kwargs))
        if names:
            self._see(func, args, names)
            if not func.__name__.startswith(SHAPED_ALIKE):
                for made in _whole_numbers(result):
                    self._names[_memory(made)] = names | self._names.get(_memory(made), frozenset())
                    self._kept.append(made)
        return result

    def _of(self, values: Any) -> frozenset[str]:
        found = (self._names.get(_memory(one), frozenset()) for one in _whole_numbers(values))
        return frozenset().union(*found)

    def _see(self, func: Callable[..., Any], args: tuple[Any, ...], names: frozenset[str]) -> None:
        if func not in LOOKUPS:
            return
        table, ids = (args[place] for place in LOOKUPS[func])
        if isinstance(ids, (list, tuple)):
            ids = ids[0] if len(ids) == 1 else None
        if not isinstance(ids, Tensor) or not table.is_floating_point() or table.ndim != 2:
            return
        for name in self._of(ids):
            size = table_size(table.shape[0], self._ids[name], ids)
            self.sizes[name] = min(size, self.sizes.get(name, size))


def table_size(rows: int, given: Tensor, used: Tensor) -> int:
    """How many ids there are in a table of so many rows in which `used` was looked up where `given` was given.

    Where each position has a table of its own, one after the other in the rows, ids are used shifted by the start of
    its table.
    """
    if given.shape != used.shape or given.numel() == 0:
        return rows
    shift = (used - given).reshape(-1, given.shape[-1])
    by_position = bool((shift == shift[:1]).all()) and bool((shift[0].diff() >= 0).all())
    if not by_position or int(shift[0, 0]) < 0:
        return rows
    starts = [*shift[0].unique().tolist(), rows]
    return int(min(end - start for start, end in itertools.pairwise(starts)))


def _whole_numbers(values: Any) -> list[Tensor]:
    return [one for one in tree_leaves(values) if type(one) in (Tensor, nn.Parameter) and one.dtype in WHOLE]


def _memory(value: Tensor) -> int:
    return value.untyped_storage().data_ptr()
