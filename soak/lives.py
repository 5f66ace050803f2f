"""A life: one sweep in a forked child of a warmed-up process, which may be killed at any step of its writing.

A child tells its parent through a pipe each time that it is about to flush, rename or link a file or begins a chunk;
the parent lets a number of these pass and then a fraction of a chunk, so that kills fall both between any two steps
of writing and in the middle of training, on slow machines as on fast ones.
"""

from __future__ import annotations

import gc
import os
import random
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankfall.errors import RequestError
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.engines import local
from rankfall.training.options import Options
from rankfall.training.stack import Stack
from rankfall.training.sweep import sweep

BASE: dict[str, Any] = {"dim": 4, "points": 3, "feed_forward": 4, "batch": 4, "rank": 2}
CELLS = [
    Cell(**BASE, layers=layers, seed=seed, steps=steps)
    for layers, steps in ((1, 200), (2, 100), (1, 300))
    for seed in (0, 1)
]
STACKED = Options(device="cpu", threads=1, checkpoint_seconds=0)
SINGLE = Options(device="cpu", threads=1, checkpoint_seconds=0, max_stack=1)
"""Each cell a stack of its own, so that numbers are equal to the bit whichever cells are trained again."""

DELAYS = (0.0, 0.0, 0.002, 0.02)
REFUSED, FAILED = 3, 1
EVENT, TRAINED = b".", b"x"
COSTS = ("seconds",)
"""What two equal runs may differ in."""

Fault = Callable[[], None]


@dataclass
class Life:
    """A running child."""

    child: int
    pipe: int
    trained: int = 0
    """Cells that it trained to their end, of those that `live_on` heard of."""

    def end(self) -> int:
        """Wait for it and return its exit status (negative: the signal that ended it)."""
        _, status = os.waitpid(self.child, 0)
        os.close(self.pipe)
        return os.waitstatus_to_exitcode(status)

    def live_on(self) -> int:
        """Let it end by itself."""
        while heard := os.read(self.pipe, 4096):
            self.trained += heard.count(TRAINED)
        return self.end()

    def passes(self, events: int) -> bool:
        """Let so many events pass; False when it ended before."""
        return all(os.read(self.pipe, 1) for _ in range(events))


def warm_up() -> None:
    """Do once what every child would do again: load libraries, train something."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        sweep(CELLS, Path(folder) / "store", options=STACKED)
        contents(Store(Path(folder) / "store"))
    # Sweeps collect garbage after each stack; no child goes through what is loaded here for it.
    gc.collect()
    gc.freeze()


def scratch_folder(prefix: str) -> Path:
    """A new folder in memory where there is such a place: what is tried is the order of writes, not the disk."""
    memory = Path("/dev/shm")
    return Path(tempfile.mkdtemp(prefix=prefix, dir=memory if os.access(memory, os.W_OK) else None))


def born(store: Path, options: Options = STACKED, fault: Fault = lambda: None) -> Life:
    """A sweep of `CELLS` in a child; `fault` runs in it first, to break what it will stand on."""
    reader, writer = os.pipe()
    child = os.fork()
    if child != 0:
        os.close(writer)
        return Life(child, reader)
    os.close(reader)
    status = FAILED
    try:
        fault()
        _announce(writer)
        sweep(CELLS, store, options=options)
        status = 0
    except RequestError:
        status = REFUSED
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    os._exit(status)


def _announce(pipe: int) -> None:
    def announcing(function: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*arguments: Any, **options: Any) -> Any:
            os.write(pipe, EVENT)
            return function(*arguments, **options)

        return announced

    os.fsync, os.replace, os.rename = announcing(os.fsync), announcing(os.replace), announcing(os.rename)
    os.link = announcing(os.link)
    advance = announcing(Stack.advance)

    def counted(stack: Stack) -> Any:
        rows = advance(stack)
        if stack.chunks_done == stack.chunks_total:
            os.write(pipe, TRAINED * len(stack.cells))
        return rows

    Stack.advance = counted  # type: ignore[method-assign]
    local.POLL = 0.02


def killed(
    store: Path, events: int, delay: float = 0.0, options: Options = STACKED, fault: Fault = lambda: None
) -> int:
    """A life that is killed after so many events: 1 when the kill found it alive, else 0 (having ended well)."""
    life = born(store, options, fault)
    if not life.passes(events):
        status = life.end()
        assert status in (0, REFUSED), f"a sweep on {store} ended with {status}"
        return 0
    time.sleep(delay)
    os.kill(life.child, signal.SIGKILL)
    return int(life.end() == -signal.SIGKILL)


def killed_side_by_side(store: Path, chance: random.Random, most: int, kills: int) -> int:
    """Two sweeps on one store, each killed at random and born again, until enough kills or one finishes."""
    done = 0
    lives = {slot: [born(store), chance.randint(1, most)] for slot in (0, 1)}
    finished = False
    while lives:
        pipes = {life.pipe: slot for slot, (life, _) in lives.items()}
        for pipe in select.select(list(pipes), [], [])[0]:
            slot = pipes[pipe]
            life, left = lives[slot]
            if not os.read(pipe, 1):
                status = life.end()
                assert status == 0, f"a sweep on {store} ended with {status}"
                finished = True
                del lives[slot]
            elif left <= 1 and not finished and done < kills:
                time.sleep(chance.choice(DELAYS))
                os.kill(life.child, signal.SIGKILL)
                done += life.end() == -signal.SIGKILL
                lives[slot] = [born(store), chance.randint(1, most)]
            else:
                lives[slot][1] = left - 1
    return done


def contents(store: Store) -> dict[str, tuple[Any, ...]]:
    """Everything that a store says about its runs, to be compared bit for bit."""
    found = {}
    for run in store.runs():
        summary = {key: value for key, value in run.summary().items() if key not in COSTS}
        weights = {name: tensor.numpy().tobytes() for name, tensor in run.weights().items()}
        found[run.id] = (summary, run.history().to_pylist(), weights)
    return found


def unbroken(store: Path, options: Options = STACKED) -> dict[str, tuple[Any, ...]]:
    """What a sweep that nothing disturbs leaves."""
    status = born(store, options).live_on()
    assert status == 0, f"the undisturbed sweep ended with {status}"
    return contents(Store(store, create=False))


def compare(path: Path, expected: dict[str, tuple[Any, ...]]) -> None:
    """The store holds exactly what it should, and nothing that the dead left counts or stays."""
    store = Store(path, create=False)
    assert store.damaged() == {}, "a run is damaged"
    found = contents(store)
    assert sorted(found) == sorted(expected), "runs are lost or doubled"
    assert found == expected, "numbers differ from those of an undisturbed sweep"
    assert list(store.checkpoints_folder.iterdir()) == [], "a checkpoint was left"
    left = [item for item in store.claims_folder.rglob("[!.]*") if item.is_file()]
    assert left == [], f"claims were left: {left}"
