"""The plan of a sweep: which cells are missing, in stacks that fit the memory, counted before any is built."""

from __future__ import annotations

import bisect
import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rankfall.errors import RequestError
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.claims import Claims
from rankfall.store.identity import identity
from rankfall.store.run import SUMMARY
from rankfall.store.store import Store
from rankfall.system import available_memory
from rankfall.training.kinds import (
    CHUNK,
    TrainingCell,
    cell_from,
    kind_of,
    stack_bytes,
    stack_key,
    step_flops,
)

Group = tuple[TrainingCell, ...]
"""Cells trained together as one program."""

GPU_SHARE = 0.85
"""Of free device memory; the rest is for the allocator's rounding and what libraries keep."""

RAM_SHARE = 0.5
"""Of available memory; a laptop has other things to do."""


@dataclass(frozen=True)
class Plan:
    """The cells of a sweep, what is finished, and the stacks that train the rest."""

    cells: tuple[TrainingCell, ...]
    finished: tuple[TrainingCell, ...]
    stacks: tuple[Group, ...]

    @property
    def flops(self) -> float:
        return sum(group_flops(group) for group in self.stacks)


def make_plan(
    cells: Sequence[TrainingCell],
    store: Store,
    *,
    memory: int,
    device: str = "cpu",
    max_stack: int | None = None,
    at_least: int = 1,
    parts: Sequence[str] = (SUMMARY,),
) -> Plan:
    """Plan the missing cells: unfinished stacks first and as they were begun, then new stacks that fit the memory.

    A begun stack keeps its members, since a stack of others would give the same numbers only up to rounding.
    `at_least` stacks are made where there are cells enough, so that as many workers have something to do.
    """
    missing = store.missing(cells, parts)
    begun = _begun(store, missing)
    taken = {cell for group in begun for cell in group}
    fresh = [cell for cell in missing if cell not in taken]
    stacks = [*begun, *group_cells(fresh, memory=memory, device=device, max_stack=max_stack)]
    while len(stacks) < at_least:
        widest = max(range(len(begun), len(stacks)), key=lambda i: (len(stacks[i]), -i), default=None)
        if widest is None or len(stacks[widest]) == 1:
            break
        stacks[widest : widest + 1] = halves(stacks[widest])
    still = set(missing)
    return Plan(tuple(cells), tuple(cell for cell in cells if cell not in still), tuple(stacks))


def group_cells(
    cells: Sequence[TrainingCell], *, memory: int, device: str = "cpu", max_stack: int | None = None
) -> list[Group]:
    """Cells of one key together, in stacks as even as possible of which each fits the memory."""
    by_key: dict[tuple[object, ...], list[TrainingCell]] = {}
    for cell in cells:
        by_key.setdefault(stack_key(cell), []).append(cell)
    groups: list[Group] = []
    for members in by_key.values():
        kind = kind_of(members[0])
        members = sorted(members, key=kind.order)
        most = min(_fitting(members, memory, device), max_stack or kind.widest(members, device))
        groups += _even_pieces(members, -(-len(members) // most))
    return groups


def halves(group: Group) -> list[Group]:
    """A stack cut in two."""
    middle = (len(group) + 1) // 2
    return [group[:middle], group[middle:]]


def stack_name(group: Sequence[TrainingCell]) -> str:
    """The name of a stack: a hash of its members in their order."""
    return hashlib.sha256(" ".join(identity(cell) for cell in group).encode()).hexdigest()[:16]


def tidy(store: Store, claims: Claims) -> None:
    """Remove what killed sweeps left: partial runs, dead claims, and checkpoints whose cells are all in the store."""
    store.tidy()
    claims.tidy()
    checkpoints = Checkpoints(store.checkpoints_folder)
    for name in checkpoints.names():
        found = checkpoints.find(name)
        ids = [identity(member) for member in found.members] if found else []
        if ids and all(store.has(id) for id in ids) and claims.take_all(ids):
            checkpoints.remove(name)
            claims.release(ids)
    checkpoints.tidy()


def has_leftovers(store: Store) -> bool:
    """Whether there are claims, signs of life or checkpoints, of the living or of the dead."""
    places = (store.claims_folder / "owners", store.claims_folder, store.checkpoints_folder)
    return any(path.name != "owners" for place in places for path in place.glob("[!.]*"))


def _begun(store: Store, missing: Sequence[TrainingCell]) -> list[Group]:
    wanted = set(missing)
    groups: list[Group] = []
    checkpoints = Checkpoints(store.checkpoints_folder)
    for name in checkpoints.names():
        found = checkpoints.find(name)
        if found is None:
            continue
        try:
            group = tuple(cell_from(member) for member in found.members)
        except (TypeError, RequestError):
            continue  # written by a version that knows other settings: its cells are planned anew
        if wanted & set(group) and stack_name(group) == name:
            groups.append(group)
            wanted -= set(group)
    return groups


def _even_pieces(members: Sequence[TrainingCell], pieces: int) -> list[Group]:
    bounds = [len(members) * piece // pieces for piece in range(pieces + 1)]
    return [tuple(members[low:high]) for low, high in itertools.pairwise(bounds)]


def _fitting(members: Sequence[TrainingCell], memory: int, device: str) -> int:
    """The most members, largest first, that fit the memory together; not even one is an error."""
    kind = device.partition(":")[0]
    if stack_bytes(members[:1], kind) > memory:
        raise too_large(members[0], stack_bytes(members[:1], kind), memory, device)
    return bisect.bisect_right(
        range(1, len(members) + 1), memory, key=lambda count: stack_bytes(members[:count], kind)
    )


def too_large(cell: TrainingCell, needed: int, memory: int | None, device: str) -> RequestError:
    """The error for a cell that no stack can hold."""
    return RequestError(
        required=f"about {needed / 2**30:.3g} GiB on {device} to train the cell with {kind_of(cell).size(cell)}",
        got="less" if memory is None else f"{memory / 2**30:.3g} GiB",
        remedy="lower its batch or the model's size, or use a device with more memory",
    )


def memory_budget(device: str) -> int:
    """Bytes that a stack may take on this machine now."""
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_SHARE)
    return int(available_memory() * RAM_SHARE)


def group_flops(group: Sequence[TrainingCell], chunks_done: int = 0) -> float:
    """Floating-point operations that a stack still needs."""
    return sum(step_flops(cell) * (cell.steps - chunks_done * CHUNK) for cell in group)
