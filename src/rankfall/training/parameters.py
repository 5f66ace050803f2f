"""Where each weight lies in a model's flat row of parameters, and how it starts.

All parameters of a stack live in one (models, size) tensor: the optimizer is then a handful of operations on it,
whatever the number of models, layers and heads, and each weight is a view with a leading model axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rankfall.catalogue import RECIPES
from rankfall.norms import parse_norm
from rankfall.training.cell import Cell
from rankfall.training.recipe import TrainingRecipe

ALIGNMENT = 4
"""Every weight's place and every row's length are a multiple of so many numbers: matrix products read 16 bytes at a
time, and fall back to slower kernels for a weight that begins in between."""

Start = Callable[[torch.Generator, tuple[int, ...]], Tensor]


@dataclass(frozen=True)
class Slot:
    """One weight: its shape without the model axis, its place in the row, how it starts."""

    name: str
    shape: tuple[int, ...]
    offset: int
    start: Start

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def kind(self) -> str:
        """The name without the layer number: what learning rates per group go by."""
        return self.name.rpartition(".")[2]

    @property
    def in_first_layer(self) -> str:
        """The name of the same weight in the first layer; its own where it belongs to no layer."""
        return f"0.{self.kind}" if "." in self.name else self.name


@dataclass(frozen=True)
class Layout:
    """All slots of a model, in order, each aligned; nothing ever moves the numbers in between from zero."""

    slots: tuple[Slot, ...]

    @property
    def size(self) -> int:
        """Numbers in a row."""
        return _aligned(self.slots[-1].offset + self.slots[-1].size)

    @property
    def parameters(self) -> int:
        """Numbers in a row that are trained."""
        return sum(slot.size for slot in self.slots)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """(models, size) rows of one (models, ...) tensor for each slot, the numbers in between zero."""
        pieces: list[Tensor] = []
        ends = [slot.offset for slot in self.slots[1:]] + [self.size]
        for slot, end, part in zip(self.slots, ends, parts, strict=True):
            _append(pieces, part.flatten(1))
            if gap := end - slot.offset - slot.size:
                pieces.append(part.new_zeros(part.shape[0], gap))
        return torch.cat(pieces, dim=1)

    def views(self, rows: Tensor) -> dict[str, Tensor]:
        """Each weight as a view (models, *shape) of the rows."""
        return {s.name: rows[:, s.offset : s.offset + s.size].view(-1, *s.shape) for s in self.slots}

    def initial(self, seed: int, start: str = "apart") -> Tensor:
        """(size,) float64 starting values; the same for a model alone and in any stack, on any device.

        The first layer does not depend on `start`; from `copies` all others equal it.
        """
        generator = torch.Generator().manual_seed(seed)
        drawn: dict[str, Tensor] = {}
        for slot in self.slots:
            if start == "copies" and slot.in_first_layer in drawn:
                drawn[slot.name] = drawn[slot.in_first_layer]
            else:
                drawn[slot.name] = slot.start(generator, slot.shape)[None]
        return self.join(list(drawn.values()))[0]

    def rates(self, recipe: TrainingRecipe) -> Tensor:
        """(size,) learning rates relative to the model's own."""
        return self.join([torch.full((1, s.size), recipe.rates.get(s.kind, 1.0)) for s in self.slots])[0]


def layout(cell: Cell) -> Layout:
    """The layout of a cell's model. Ranks with equal heads * rank share it.

    Initialisation is that of PyTorch's own modules, so that a copy starts as `nn.MultiheadAttention` does: query, key
    and value uniform to Xavier's bound of the packed (3 width, width) map, sqrt(6 / (4 width)), biases zero; output
    and feed-forward uniform within 1/sqrt(inputs), the output's bias zero, the feed-forward's in the same bounds.
    Position codes are normal with expected length one, that of the points.
    """
    recipe = RECIPES[cell.recipe]
    width, copies = cell.width, cell.multiplier
    score, value = cell.heads * cell.rank, cell.heads * cell.value_width
    branch = recipe.branch_scale / (math.sqrt(2 * cell.layers) if recipe.by_depth else 1.0)
    packed = math.sqrt(6.0 / (4.0 * width))
    inward = 1.0 / math.sqrt(width)
    hidden = 1.0 / math.sqrt(cell.feed_forward)
    wanted: list[tuple[str, tuple[int, ...], Start]] = []
    if cell.positions == "additive":
        wanted.append(("positions", (cell.tokens, cell.dim), normal(1.0 / math.sqrt(cell.dim))))
    if cell.positions == "concatenated":
        coordinates = (cell.tokens, cell.position_width)
        wanted.append(("positions", coordinates, normal(1.0 / math.sqrt(cell.position_width))))
    for layer in range(cell.layers):
        wanted += [
            (f"{layer}.query", (width, score), uniform(packed)),
            (f"{layer}.query_bias", (score,), constant(0.0)),
            (f"{layer}.key", (width, score), uniform(packed)),
            (f"{layer}.key_bias", (score,), constant(0.0)),
            (f"{layer}.value", (width, value), uniform(packed)),
            (f"{layer}.value_bias", (value,), constant(0.0)),
            (f"{layer}.output", (value, width), uniform(branch / math.sqrt(value / copies))),
            (f"{layer}.output_bias", (copies, width), constant(0.0)),
            (f"{layer}.rise", (width, cell.feed_forward), uniform(inward)),
            (f"{layer}.rise_bias", (cell.feed_forward,), uniform(inward)),
            (f"{layer}.fall", (cell.feed_forward, width), uniform(branch * hidden)),
            (f"{layer}.fall_bias", (width,), uniform(branch * hidden)),
            *_norm_slots(cell, f"{layer}.attention_norm"),
            *_norm_slots(cell, f"{layer}.feed_forward_norm"),
        ]
        if cell.norm_placement == "peri":
            for name in ("attention_norm", "feed_forward_norm"):
                wanted += _norm_slots(cell, f"{layer}.{after(name)}")
    if cell.norm_placement != "post":
        wanted += _norm_slots(cell, "final_norm")
    return laid_out(wanted)


def laid_out(wanted: Sequence[tuple[str, tuple[int, ...], Start]]) -> Layout:
    """Weights one after another, each aligned."""
    slots: list[Slot] = []
    offset = 0
    for name, shape, start in wanted:
        slots.append(Slot(name, shape, offset, start))
        offset = _aligned(offset + slots[-1].size)
    return Layout(tuple(slots))


def _append(pieces: list[Tensor], part: Tensor) -> None:
    """Add (models, n) to the pieces; as one with the last of them where it follows that in memory.

    Fused kernels give gradients of several weights as views of one tensor, and few large pieces are joined faster.
    """
    if pieces and part.untyped_storage().data_ptr() == pieces[-1].untyped_storage().data_ptr():
        last = pieces[-1]
        follows = part.storage_offset() == last.storage_offset() + last.shape[1]
        if follows and last.stride() == part.stride() == (part.stride(0), 1):
            size = (last.shape[0], last.shape[1] + part.shape[1])
            pieces[-1] = last.as_strided(size, last.stride(), last.storage_offset())
            return
    pieces.append(part)


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def after(name: str) -> str:
    """The norm behind a branch, where another of that name stands in front of it."""
    return f"after_{name}"


def _norm_slots(cell: Cell, name: str) -> list[tuple[str, tuple[int, ...], Start]]:
    """What the norm says that it learns: gains start at one, biases at zero."""
    sizes = parse_norm(cell.norm).gains(cell.width)
    return [(f"{name}_{part}", (size,), constant(float(part == "gain"))) for part, size in sizes.items()]


def uniform(bound: float) -> Start:
    """Evenly within -bound and bound."""
    return lambda generator, shape: (2.0 * torch.rand(shape, generator=generator, dtype=torch.float64) - 1.0) * bound


def normal(deviation: float) -> Start:
    """Normal numbers around zero."""
    return lambda generator, shape: torch.randn(shape, generator=generator, dtype=torch.float64) * deviation


def constant(value: float) -> Start:
    """The same number everywhere."""
    return lambda generator, shape: torch.full(shape, value, dtype=torch.float64)
