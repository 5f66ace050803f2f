"""Train one stack to its end: go on from its checkpoint, save on the way, write a run per cell."""

from __future__ import annotations

import enum
import gc
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from rankfall.provenance import hardware, provenance
from rankfall.runs import Checkpoints, Store, identity, settings
from rankfall.runs.run import WEIGHTS
from rankfall.training.board import Board
from rankfall.training.cell import Cell
from rankfall.training.options import Options, resolve_device
from rankfall.training.plan import Group, stack_name, too_large
from rankfall.training.stack import Stack, stack_bytes

CHECKPOINT_SHARE = 0.05
"""Most of the training time that saving may take; slow disks are written to less often."""

Rows = list[dict[str, Any]]


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


Build = Callable[[Sequence[Cell], str, bool, bool], Trainable]
"""Cells, device, whether to compile, whether to use TF32: a stack ready to train."""


class Ending(enum.StrEnum):
    """How work on a stack ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    OUT_OF_MEMORY = "out of memory"
    BUSY = "busy"


@dataclass(frozen=True)
class Watch:
    """What the caller learns and decides while a stack trains."""

    stop: Callable[[], bool] = lambda: False
    """Asked after every chunk; True saves and ends."""
    chunk: Callable[[Group, int, Rows], None] = lambda group, chunks, rows: None
    """Told after every chunk: the stack, its chunks done, its newest metric rows."""
    note: Callable[[str], None] = lambda text: None
    """Told what a person should know."""


def train(group: Group, store: Store, options: Options, watch: Watch, build: Build = Stack) -> Ending:
    """Train the stack and put its cells into the store. The caller holds the claims on them."""
    device = resolve_device(options.device)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    ending = Ending.OUT_OF_MEMORY
    try:
        ending = _Work(group, store, options, watch, build, device).run()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    # outside the handler, so that nothing holds on to the frames of a failed step
    _release_memory(device)
    if ending is not Ending.OUT_OF_MEMORY:
        return ending
    if len(group) == 1:
        raise too_large(group[0], stack_bytes(group, device.partition(":")[0]), None, device)
    Checkpoints(store.checkpoints_folder).remove(stack_name(group))
    return Ending.OUT_OF_MEMORY


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on whichever device."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    text = str(error).lower()
    return "out of memory" in text or "can't allocate memory" in text


def _release_memory(device: str) -> None:
    """Leave nothing of a stack behind for the next one to trip over."""
    # compiled code is kept per function and limited in number; every stack has shapes of its own
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


class _Work:
    def __init__(self, group: Group, store: Store, options: Options, watch: Watch, build: Build, device: str) -> None:
        self.group, self.store, self.options, self.watch, self.device = group, store, options, watch, device
        self.name = stack_name(group)
        self.members = [settings(cell) for cell in group]
        self.checkpoints = Checkpoints(store.checkpoints_folder)
        self.checkpoints.begin(self.name, self.members)
        self.compiled = device.startswith("cuda") if options.compile is None else options.compile
        self.stack = build(group, device, self.compiled, options.tf32)
        self.history: Rows = []
        self.seconds = 0.0
        self.saved_at = 0.0
        self.save_cost = 0.0

    def run(self) -> Ending:
        self._go_on()
        self.watch.chunk(self.group, self.stack.chunks_done, [])
        with Board(self.options.tensorboard, self.group, self.stack.chunks_done) as board:
            while self.stack.chunks_done < self.stack.chunks_total and not self._all_diverged():
                start = time.perf_counter()
                rows = self.stack.advance()
                self.seconds += time.perf_counter() - start
                self.history += [{"cell": index, **row} for index, row in enumerate(rows)]
                board.log(rows)
                self.watch.chunk(self.group, self.stack.chunks_done, rows)
                if self.watch.stop() and self.stack.chunks_done < self.stack.chunks_total:
                    self._save()
                    return Ending.STOPPED
                if self._is_time_to_save():
                    self._save()
        # so that a death while runs are written costs nothing, and whoever goes on writes the very same numbers
        self._save()
        self._write_runs()
        self.checkpoints.remove(self.name)
        return Ending.FINISHED

    def _go_on(self) -> None:
        found = self.checkpoints.find(self.name)
        if found is None or not found.files:
            return
        if not found.intact():
            self.watch.note(f"the checkpoint in {found.folder} is damaged; its {len(self.group)} cells start anew")
            return
        self.stack.restore(found.tensors())
        self.history, self.seconds = found.history(), found.seconds
        self.saved_at = self.seconds

    def _all_diverged(self) -> bool:
        newest = self.history[-len(self.group) :]
        return bool(newest) and all(row["diverged"] for row in newest)

    def _is_time_to_save(self) -> bool:
        pause = max(self.options.checkpoint_seconds, self.save_cost / CHECKPOINT_SHARE)
        if self.options.checkpoint_seconds == 0:
            pause = 0.0
        return self.seconds - self.saved_at >= pause

    def _save(self) -> None:
        start = time.perf_counter()
        self.checkpoints.save(
            self.name,
            self.members,
            tensors=self.stack.state(),
            history=self.history,
            chunk=self.stack.chunks_done,
            seconds=self.seconds,
        )
        self.saved_at = self.seconds
        self.save_cost = time.perf_counter() - start

    def _write_runs(self) -> None:
        environment = provenance() | {
            "device": self.device,
            "threads": torch.get_num_threads(),
            "compiled": self.compiled,
            "tf32": self.options.tf32,
        }
        for index, (cell, summary) in enumerate(zip(self.group, self.stack.summaries(), strict=True)):
            cost = {
                "seconds": self.seconds / len(self.group),
                "stack_size": len(self.group),
                "device": self.device,
                "hardware": hardware(),
            }
            if not self.store.has(identity(cell), parts=(WEIGHTS,)):
                self.store.write(
                    cell,
                    summary={"status": summary["status"], **self.members[index], **summary, **cost},
                    history=[
                        {key: value for key, value in row.items() if key != "cell"}
                        for row in self.history
                        if row["cell"] == index
                    ],
                    weights=self.stack.weights(index),
                    environment=environment,
                )
