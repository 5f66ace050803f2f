"""TensorBoard, on request: one log per cell, named by what distinguishes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError
from rankfall.runs import identity
from rankfall.training.cell import CHUNK, Cell

CURVES = ("loss", "fresh", "learning_rate")


class Board:
    """Logs of the cells of a stack; nothing at all when no folder is given."""

    def __init__(self, folder: str | None, cells: Sequence[Cell], chunks_done: int) -> None:
        self._writers: list[Any] = []
        if folder is not None:
            writer = _summary_writer()
            # what an interrupted run logged beyond its checkpoint is hidden, since it is trained again
            self._writers = [
                writer(str(Path(folder) / _name(cell)), purge_step=chunks_done * CHUNK + 1) for cell in cells
            ]

    def __enter__(self) -> Board:
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()

    def log(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """One metric row per cell."""
        for writer, row in zip(self._writers, rows, strict=False):
            for curve in CURVES:
                if row.get(curve) is not None:
                    writer.add_scalar(curve, row[curve], row["step"])


def _name(cell: Cell) -> str:
    return f"L{cell.layers}-m{cell.multiplier}-r{cell.rank}-s{cell.seed}-{identity(cell)[:8]}"


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RequestError(
            required="TensorBoard for --tensorboard", got="no such package", remedy="pip install tensorboard"
        ) from None
    return SummaryWriter
