"""Batches of a stack, drawn on the device: one stream for each distinct (seed, data), whichever models share it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from rankfall.tasks.base import EVALUATION, TRAINING, Draws, Sample
from rankfall.training.cell import CHUNK, Cell

WINDOW_BYTES = {"cpu": 1 << 25, "cuda": 1 << 33}
"""Drawn ahead at most: a whole chunk where it fits, so that a step only has to look its batch up."""
MOST_TIES = 1e-4
"""Share of tokens."""


class Batches:
    """The batches of the current window of steps, inputs and targets (stream, window, B, n, d)."""

    def __init__(self, cells: Sequence[Cell], device: torch.device, *, compile: bool = False) -> None:
        self.cell = cells[0]
        self.task = self.cell.task_object
        self.dtype = getattr(torch, self.cell.dtype)
        streams = sorted({(cell.seed, cell.data) for cell in cells})
        chosen = [streams.index((cell.seed, cell.data)) for cell in cells]
        self.identical = chosen == list(range(len(streams)))
        self.chosen = torch.tensor(chosen, device=device)
        self.seeds = torch.tensor([seed for seed, _ in streams], device=device)
        self.repeats = torch.tensor([data == "published" for _, data in streams], device=device)
        self.all_repeat = all(cell.data == "published" for cell in cells)
        self.device = device
        self.window = window_length(self.cell, len(streams), device.type)
        # Filled in place: a captured graph goes on reading these very tensors.
        empty = (len(streams), self.window, self.cell.batch, self.cell.tokens, self.cell.dim)
        self.inputs = torch.zeros(empty, dtype=self.dtype, device=device)
        self.targets = torch.zeros_like(self.inputs)
        self.filled: int | None = None
        # Drawing is some three hundred small operations on int64 and float64. New numbers for every window are worth
        # compiling; those that come back are drawn once.
        self._compiled: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] | None = None
        self._verified = False
        if compile and not self.all_repeat:
            self._compiled = torch.compile(self._plain, dynamic=False)

    @property
    def compiled(self) -> bool:
        """Whether new data are drawn by the compiled program, and it draws what the plain one does."""
        return self._compiled is not None and self._verified

    def fill(self, step: int) -> None:
        """Draw the window that begins at this step, unless it is there already."""
        start = step % CHUNK if self.all_repeat else step
        if self.filled == start:
            return
        for stream in range(len(self.seeds)):
            first = torch.where(self.repeats[stream], step % CHUNK, step)
            steps = first + torch.arange(self.window, device=self.device)
            inputs, targets = self._training(self.seeds[stream : stream + 1], steps)
            self.inputs[stream].copy_(inputs[0])
            self.targets[stream].copy_(targets[0])
        self.filled = start

    def at(self, position: Tensor) -> tuple[Tensor, Tensor]:
        """Inputs and targets (M, B, n, d) at a position (1,) of the window; a tensor, so that a graph can hold it."""
        inputs, targets = (x.index_select(1, position)[:, 0] for x in (self.inputs, self.targets))
        if self.identical:
            return inputs, targets
        return inputs.index_select(0, self.chosen), targets.index_select(0, self.chosen)

    def evaluation(self, index: int) -> tuple[Tensor, Tensor]:
        """A batch that is never trained on."""
        sample = self._draw(self.seeds, torch.tensor([index], device=self.device), EVALUATION)
        return sample.inputs[:, 0].index_select(0, self.chosen), sample.targets[:, 0].index_select(0, self.chosen)

    def _training(self, seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        """Batches to train on; compiled, once the compiled program has drawn the same as the plain one."""
        if self._compiled is None:
            return self._plain(seeds, steps)
        if self._verified:
            return self._compiled(seeds, steps)
        try:
            found = self._compiled(seeds, steps)
            same = all(map(_same, found, self._plain(seeds, steps)))
            problem = "" if same else "it draws other numbers"
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            problem = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        if problem:
            warnings.warn(f"drawing without the compiled program, which failed here: {problem}", stacklevel=2)
            self._compiled = None
            return self._plain(seeds, steps)
        self._verified = True
        return found

    def _plain(self, seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
        sample = self._draw(seeds, steps, TRAINING)
        return sample.inputs, sample.targets

    def _draw(self, seeds: Tensor, steps: Tensor, purpose: int) -> Sample:
        draws = Draws(seeds, steps, purpose, self.dtype)
        return self.task.sample(draws, self.cell.batch, self.cell.points, self.cell.dim)


def _same(found: Tensor, expected: Tensor) -> bool:
    """Up to the rounding of float32, and to a few tokens whose answer it decides, between two points equally far."""
    close = torch.isclose(found, expected, rtol=1e-5, atol=1e-5).all(dim=-1)
    return float(close.double().mean()) >= 1.0 - MOST_TIES


def window_length(cell: Cell, streams: int, device: str) -> int:
    """The largest divisor of a chunk whose batches fit."""
    allowed = max(1, WINDOW_BYTES[device] // _step_bytes(cell, streams))
    return max(size for size in range(1, CHUNK + 1) if CHUNK % size == 0 and size <= allowed)


def window_bytes(cell: Cell, streams: int, device: str) -> int:
    """What the batches drawn ahead take, with what drawing one stream takes in passing."""
    length = window_length(cell, streams, device)
    return length * (_step_bytes(cell, streams) + 8 * _step_bytes(cell, 1))


def _step_bytes(cell: Cell, streams: int) -> int:
    return 2 * streams * cell.batch * cell.tokens * cell.dim * (8 if cell.dtype == "float64" else 4)
