"""Kinds of cells: what a sweep must know of a cell to plan, stack and train it, whatever it trains.

A kind is one class and one line of the catalogue; grids, stores, checkpoints, engines and estimates serve all kinds.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol, cast

from torch import Tensor

from rankfall.catalogue import CELL_KINDS
from rankfall.progress import Progress, silent

CHUNK = 100
"""Steps between metric rows; the published schedule steps, and its data stream starts again, this often."""

Rows = list[dict[str, Any]]


class TrainingCell(ABC):
    """One training run as plain values: frozen dataclasses, whose fields are their identity."""

    kind: ClassVar[str]
    steps: int
    seed: int

    @property
    def chunks(self) -> int:
        """Chunks of `CHUNK` steps in the whole run."""
        return self.steps // CHUNK

    @property
    @abstractmethod
    def label(self) -> str:
        """A short name that tells cells of a sweep apart, without the seed's hash."""


class Trainable(Protocol):
    """What a sweep needs of a stack in training."""

    @property
    def chunks_done(self) -> int: ...
    @property
    def chunks_total(self) -> int: ...
    def advance(self) -> Rows: ...
    def state(self) -> dict[str, Tensor]: ...
    def restore(self, state: Mapping[str, Tensor]) -> None: ...
    def weights(self, index: int) -> dict[str, Tensor]: ...
    def summaries(self) -> Rows: ...


class Steppable(Trainable, Protocol):
    """What an estimate needs besides: bare steps, outside the schedule and the record."""

    @property
    def most_steps(self) -> int: ...
    def prepare(self) -> None: ...
    def run_steps(self, steps: int) -> None: ...


@dataclass(frozen=True)
class Surroundings:
    """What a grid does not say itself: the text to train on, the store, where cells will be trained."""

    text: str | None = None
    validation: str | None = None
    """Text to measure on; by default part of the text is held out."""
    store: Callable[[], Path] | None = None
    """Gives the store's folder, made when it is first asked for."""
    device: str = "cpu"
    progress: Progress = silent
    note: Callable[[str], None] = lambda text: None
    made: dict[Any, Any] = field(default_factory=dict, compare=False)
    """What a kind made for one cell of a grid and needs for others."""

    @property
    def folder(self) -> Path | None:
        """The store's folder, where there is one."""
        return None if self.store is None else self.store()


ALONE = Surroundings()
"""No text and no store: enough for grids that need neither."""


class CellKind(ABC):
    """What is particular to the cells of one class."""

    @property
    @abstractmethod
    def cell(self) -> type[TrainingCell]:
        """The class of its cells."""

    @property
    @abstractmethod
    def errors(self) -> tuple[str, ...]:
        """Names of the results that a row shows first, the one to minimise before the others."""

    @abstractmethod
    def stack_key(self, cell: Any) -> tuple[Any, ...]:
        """Cells with equal keys train as one program."""

    @abstractmethod
    def order(self, cell: Any) -> tuple[Any, ...]:
        """By what the members of a stack are sorted, those that need most memory first."""

    @abstractmethod
    def widest(self, cells: Sequence[Any], device: str) -> int:
        """The most cells of this key in one program that pay on a device."""

    @abstractmethod
    def stack_bytes(self, cells: Sequence[Any], device: str) -> int:
        """Bytes that a stack takes while it trains."""

    @abstractmethod
    def step_flops(self, cell: Any) -> float:
        """Floating-point operations of one training step: 2 per multiply-add, backward twice the forward."""

    def costs(self, cells: Sequence[Any], folder: Path | None = None) -> dict[str, Any]:
        """What a plan tells of a stack before it is trained, besides its memory and time; `folder` is the store's."""
        return {"flops": sum(self.step_flops(cell) * cell.steps for cell in cells)}

    @abstractmethod
    def size(self, cell: Any) -> str:
        """The settings that decide how much memory a cell takes, for the error that it is too large."""

    @abstractmethod
    def build(
        self, cells: Sequence[Any], device: str, compile: bool, tf32: bool, folder: Path | None = None
    ) -> Steppable:
        """A stack ready to train; `folder` is that of the store, where a kind keeps what its cells are trained on."""

    @property
    def grid_keys(self) -> dict[str, str]:
        """What a grid may set, and the type of each: the fields of a cell."""
        return {field.name: str(field.type) for field in dataclasses.fields(cast(Any, self.cell))}

    def from_grid(self, settings: dict[str, Any], around: Surroundings) -> TrainingCell:
        """The cell of one choice of a grid's settings."""
        return self.cell(**settings)

    def slower(self, cells: Sequence[Any], device: str) -> str | None:
        """What a person should know about cells that do not train as fast as others; None when there is nothing."""
        return None


def kind_of(cell: TrainingCell) -> CellKind:
    """The kind of a cell."""
    return CELL_KINDS[cell.kind]


def cell_from(settings: Mapping[str, Any]) -> TrainingCell:
    """The cell of these settings, as they stand in a grid, a checkpoint or a row; its task tells its kind."""
    return kind_named(settings).cell(**settings)


def kind_named(settings: Mapping[str, Any]) -> CellKind:
    """The kind of cell that settings describe: that of their task's name, or else points."""
    task = settings.get("task")
    return CELL_KINDS[task if isinstance(task, str) and task in CELL_KINDS else "points"]


def build_stack(
    cells: Sequence[TrainingCell], device: str, compile: bool, tf32: bool, folder: Path | None = None
) -> Steppable:
    """A stack of cells of one kind, ready to train."""
    return kind_of(cells[0]).build(cells, device, compile, tf32, folder)


def stack_key(cell: TrainingCell) -> tuple[Any, ...]:
    """Cells with equal keys train as one program."""
    return (cell.kind, *kind_of(cell).stack_key(cell))


def stack_bytes(cells: Sequence[TrainingCell], device: str = "cuda") -> int:
    """Bytes that a stack takes while it trains."""
    return kind_of(cells[0]).stack_bytes(cells, device)


def step_flops(cell: TrainingCell) -> float:
    """Floating-point operations of one training step of one cell."""
    return kind_of(cell).step_flops(cell)
