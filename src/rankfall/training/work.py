"""Work on one stack: claim it, go on from its checkpoint, train, save, write its runs, stop when told."""

from __future__ import annotations

import contextlib
import enum
import gc
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from rankfall.errors import RequestError
from rankfall.provenance import hardware, provenance
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.claims import Claims
from rankfall.store.identity import identity, settings
from rankfall.store.run import WEIGHTS
from rankfall.store.store import Store
from rankfall.training.kinds import CHUNK, Rows, Trainable, TrainingCell, build_stack, stack_bytes
from rankfall.training.options import Options, resolve_device
from rankfall.training.plan import Group, stack_name, too_large
from rankfall.training.threads import stack_threads

SIGNALS = (signal.SIGINT, signal.SIGTERM)

CURVES = ("loss", "fresh", "learning_rate")
"""What TensorBoard shows of a cell."""

CHECKPOINT_SHARE = 0.05
"""Most of the training time that saving may take; slow disks are written to less often."""

Build = Callable[[Sequence[TrainingCell], str, bool, bool], Trainable]
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
    """Called after every chunk; True saves and ends."""
    chunk: Callable[[Group, int, Rows], None] = lambda group, chunks, rows: None
    """Told after every chunk: the stack, its chunks done, its newest metric rows."""
    note: Callable[[str], None] = lambda text: None
    """Told what a person should know."""


def work_on(
    group: Group, store: Store, claims: Claims, options: Options, watch: Watch, build: Build | None = None
) -> Ending:
    """Claim a stack and train it, or say that another process is at it."""
    names = [identity(cell) for cell in group]
    if not claims.take_all(names):
        return Ending.BUSY
    try:
        set_aside_damaged_runs(names, store, watch)
        checkpoints = Checkpoints(store.checkpoints_folder)
        missing = tuple(store.missing(group, options.parts))
        if not missing:
            # finished by another process since the plan was made; a checkpoint here is what its death left behind
            checkpoints.remove(stack_name(group))
            return Ending.FINISHED
        begun = checkpoints.find(stack_name(group)) is not None
        return train(group if begun else missing, store, options, watch, build)
    finally:
        claims.release(names)


def set_aside_damaged_runs(names: Sequence[str], store: Store, watch: Watch) -> None:
    """Move damaged runs of these cells away and say so. The caller holds the claims on them."""
    for name in names:
        damage = store.damage_of(name)
        moved = store.set_aside(name) if damage is not None else None
        if damage is not None and moved is not None:
            watch.note(
                f"required {damage.required}; got {damage.got}; run moved to {moved}, its cell is trained anew"
            )


def train(group: Group, store: Store, options: Options, watch: Watch, build: Build | None = None) -> Ending:
    """Train the stack and put its cells into the store. The caller holds the claims on them."""
    device = resolve_device(options.device)
    made = build or partial(build_stack, folder=store.path)
    ending = Ending.OUT_OF_MEMORY
    try:
        with stack_threads(group, device, options.threads):
            ending = _Work(group, store, options, watch, made, device).run()
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
    # outside the handler, so that nothing holds on to the frames of a failed step
    release_memory(device)
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


def release_memory(device: str) -> None:
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
        if damage := self.checkpoints.damage(self.name):
            self._set_aside(damage)
        self.checkpoints.begin(self.name, self.members)
        self.compiled = device.startswith("cuda") if options.compile is None else options.compile
        self._build: Callable[[], Trainable] = lambda: build(group, device, self.compiled, options.tf32)
        self.stack = self._build()
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
        try:
            history = found.history()
            self.stack.restore(found.tensors())
        except Exception as error:
            if is_out_of_memory(error):
                raise
            # whole by its checksums, and yet no state of this stack: half of it may be restored already
            self._set_aside(f"{found.folder} holds no state of its stack ({type(error).__name__})")
            self.checkpoints.begin(self.name, self.members)
            self.stack = self._build()
            return
        self.history, self.seconds = history, found.seconds
        self.saved_at = self.seconds

    def _set_aside(self, damage: str) -> None:
        count = len(self.group)
        cells = "its cell starts" if count == 1 else f"its {count} cells start"
        self.watch.note(f"{damage}; {cells} anew, what was there is kept in {self.checkpoints.set_aside(self.name)}")

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


@contextlib.contextmanager
def stop_on_signals(told: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Ctrl-C and a scheduler's SIGTERM as a request: yield a function that says whether to stop.

    A second Ctrl-C ends at once. Outside the main thread, where no signal arrives, the answer is always no.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    stopping = threading.Event()

    def answer(number: int, frame: FrameType | None) -> None:
        if stopping.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        stopping.set()
        told()

    before = {number: signal.signal(number, answer) for number in SIGNALS}
    try:
        yield stopping.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Board:
    """Logs of the cells of a stack; nothing at all when no folder is given."""

    def __init__(self, folder: str | None, cells: Sequence[TrainingCell], chunks_done: int) -> None:
        self._writers: list[Any] = []
        if folder is not None:
            writer = _summary_writer()
            # what an interrupted run logged beyond its checkpoint is hidden, since it is trained again
            self._writers = [
                writer(str(Path(folder) / f"{cell.label}-{identity(cell)[:8]}"), purge_step=chunks_done * CHUNK + 1)
                for cell in cells
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


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RequestError(
            required="TensorBoard for --tensorboard", got="no such package", remedy="pip install tensorboard"
        ) from None
    return SummaryWriter
