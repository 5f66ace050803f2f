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
from rankfall.training.attention_seam import LONG
from rankfall.training.cell import CHUNK, Cell
from rankfall.training.data import window_bytes
from rankfall.training.kernels.launch import HAS_TRITON, shape_misfit
from rankfall.training.kernels.layer import layer_misfit
from rankfall.training.parameters import layout
from rankfall.training.stack import stack_key

CPU_STACK = 32
"""Cells of a stack on a processor: beyond that, steps per second hardly grow, and results come later."""
CPU_STEP_FLOPS = 1.2e9
"""Operations of a step of a stack on a processor. Stacking saves the fixed cost of each call, a factor of three for
cells of 4e6; a larger stack outgrows the caches and is slower than its cells apart (`benchmarks.stack_sizes`)."""

Group = tuple[Cell, ...]
"""Cells trained together as one program."""

GPU_SHARE = 0.85
"""Of free device memory; the rest is for the allocator's rounding and what libraries keep."""

RAM_SHARE = 0.5
"""Of available memory; a laptop has other things to do."""


@dataclass(frozen=True)
class Plan:
    """The cells of a sweep, what is finished, and the stacks that train the rest."""

    cells: tuple[Cell, ...]
    finished: tuple[Cell, ...]
    stacks: tuple[Group, ...]

    @property
    def flops(self) -> float:
        return sum(group_flops(group) for group in self.stacks)


def make_plan(
    cells: Sequence[Cell],
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
    cells: Sequence[Cell], *, memory: int, device: str = "cpu", max_stack: int | None = None
) -> list[Group]:
    """Cells of one key together, in stacks as even as possible of which each fits the memory."""
    by_key: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        by_key.setdefault(stack_key(cell), []).append(cell)
    groups: list[Group] = []
    for members in by_key.values():
        # low ranks, which have most heads, first; equal ranks together, so that a stack has few distinct ones
        members = sorted(members, key=lambda cell: (cell.rank, cell.value_width))
        most = min(_fitting(members, memory, device), max_stack or _most(members, device))
        groups += _even_pieces(members, -(-len(members) // most))
    return groups


def _most(members: Sequence[Cell], device: str) -> int:
    """The most members of a stack that train faster together than one at a time."""
    if device != "cpu":
        return len(members)
    return min(CPU_STACK, max(1, int(CPU_STEP_FLOPS // max(map(step_flops, members)))))


def halves(group: Group) -> list[Group]:
    """A stack cut in two."""
    middle = (len(group) + 1) // 2
    return [group[:middle], group[middle:]]


def stack_name(group: Sequence[Cell]) -> str:
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


def _begun(store: Store, missing: Sequence[Cell]) -> list[Group]:
    wanted = set(missing)
    groups: list[Group] = []
    checkpoints = Checkpoints(store.checkpoints_folder)
    for name in checkpoints.names():
        found = checkpoints.find(name)
        if found is None:
            continue
        try:
            group = tuple(Cell(**member) for member in found.members)
        except (TypeError, RequestError):
            continue  # written by a version that knows other settings: its cells are planned anew
        if wanted & set(group) and stack_name(group) == name:
            groups.append(group)
            wanted -= set(group)
    return groups


def _even_pieces(members: Sequence[Cell], pieces: int) -> list[Group]:
    bounds = [len(members) * piece // pieces for piece in range(pieces + 1)]
    return [tuple(members[low:high]) for low, high in itertools.pairwise(bounds)]


def _fitting(members: Sequence[Cell], memory: int, device: str) -> int:
    """The most members, largest first, that fit the memory together; not even one is an error."""
    kind = device.partition(":")[0]
    if stack_bytes(members[:1], kind) > memory:
        raise too_large(members[0], stack_bytes(members[:1], kind), memory, device)
    return bisect.bisect_right(
        range(1, len(members) + 1), memory, key=lambda count: stack_bytes(members[:count], kind)
    )


def too_large(cell: Cell, needed: int, memory: int | None, device: str) -> RequestError:
    """The error for a cell that no stack can hold."""
    return RequestError(
        required=f"about {needed / 2**30:.3g} GiB on {device} to train the cell with layers={cell.layers}, "
        f"rank={cell.rank}, multiplier={cell.multiplier}, batch={cell.batch}",
        got="less" if memory is None else f"{memory / 2**30:.3g} GiB",
        remedy="lower batch, multiplier or layers, or use a device with more memory",
    )


def stack_bytes(cells: Sequence[Cell], device: str = "cuda") -> int:
    """Bytes for weights, gradients and moments, activations kept for the gradient, and batches drawn ahead.

    Activations per layer and token: q, k, v and the mixed values, about eight of the width (residuals, norms); the
    feed-forward's two hidden tensors, and scores and weights, where no kernel computes them again; half as much again
    in passing.
    """
    item = 8 if cells[0].dtype == "float64" else 4
    streams = len({(cell.seed, cell.data) for cell in cells})
    return sum(item * _numbers(cell, device) for cell in cells) + window_bytes(cells[0], streams, device)


def _numbers(cell: Cell, device: str) -> int:
    sequence = cell.batch * cell.tokens
    scored, valued = cell.heads * cell.rank, cell.heads * cell.value_width
    kept = 2 * scored + 2 * valued + 8 * cell.width
    if device != "cuda" or layer_misfit("cuda", getattr(torch, cell.dtype), cell.width, cell.feed_forward):
        kept += 2 * cell.feed_forward
    if cell.tokens <= LONG and not _by_kernel(cell, device):
        kept += 2 * cell.heads * cell.task_object.context(cell.points)
    return 6 * layout(cell).size + (3 * sequence * kept * cell.layers) // 2


def _by_kernel(cell: Cell, device: str) -> bool:
    """Whether attention goes through the fused kernel, which keeps no scores."""
    rank = max(cell.rank, cell.value_width)
    return device == "cuda" and HAS_TRITON and shape_misfit(getattr(torch, cell.dtype), cell.tokens, rank) is None


def memory_budget(device: str) -> int:
    """Bytes that a stack may take on this machine now."""
    if device.startswith("cuda"):
        free, _ = torch.cuda.mem_get_info(device)
        return int(free * GPU_SHARE)
    return int(available_memory() * RAM_SHARE)


def step_flops(cell: Cell) -> float:
    """Floating-point operations of one training step of one cell: 2 per multiply-add, backward twice the forward.

    Per layer and token: projections 2 width (2 H r + 2 H v), scores and mixing 2 context H (r + v), and the
    feed-forward 4 width f. Queries and keys are both taken as all tokens, which is exact for self-attention.
    """
    scored, valued = cell.heads * cell.rank, cell.heads * cell.value_width
    projections = 4 * cell.width * (scored + valued)
    mixing = 2 * cell.tokens * (scored + valued)
    feed_forward = 4 * cell.width * cell.feed_forward
    return 3.0 * cell.batch * cell.tokens * cell.layers * (projections + mixing + feed_forward)


def group_flops(group: Sequence[Cell], chunks_done: int = 0) -> float:
    """Floating-point operations that a stack still needs."""
    return sum(step_flops(cell) * (cell.steps - chunks_done * CHUNK) for cell in group)
