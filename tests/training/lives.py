"""Run as a program: sweeps in forked children of a warmed-up process, killed with SIGKILL or side by side.

    lives.py kill STORE KILLS SEED    kill so many sweeps at random moments, then let one finish
    lives.py share STORE WORKERS      so many sweeps on one store at the same time

A child tells its parent through a pipe each time that it is about to flush or rename a file or begins a chunk; the
parent lets a random number of these pass and then a random fraction of a chunk, so that kills fall both between any
two steps of writing and in the middle of training, on slow machines as on fast ones.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from rankfall.training.cell import Cell
from rankfall.training.options import Options
from rankfall.training.stack import Stack
from rankfall.training.sweep import sweep

BASE: dict[str, Any] = {"dim": 4, "points": 3, "feed_forward": 4, "batch": 4, "rank": 2}
CELLS = [
    Cell(**BASE, layers=layers, seed=seed, steps=steps)
    for layers, steps in ((1, 500), (2, 400), (1, 600))
    for seed in (0, 1)
]
OPTIONS = Options(device="cpu", threads=1, checkpoint_seconds=0)
MOST_EVENTS = 30


def fork(life: Callable[[int], None]) -> tuple[int, int]:
    """A child that lives `life(pipe)`; its number and the reading end of the pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        try:
            life(writer)
            os._exit(0)
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(1)
    os.close(writer)
    return child, reader


def talkative_sweep(store: str, pipe: int) -> None:
    """A sweep that writes a byte before everything that a death might interrupt."""

    def announcing(function: Callable[..., Any]) -> Callable[..., Any]:
        def announced(*arguments: Any, **options: Any) -> Any:
            os.write(pipe, b".")
            return function(*arguments, **options)

        return announced

    os.fsync, os.replace, os.rename = announcing(os.fsync), announcing(os.replace), announcing(os.rename)
    Stack.advance = announcing(Stack.advance)  # type: ignore[method-assign]
    sweep(CELLS, store, options=OPTIONS)


def kill(store: str, kills: int, seed: int) -> dict[str, Any]:
    chance = random.Random(seed)
    survived = 0
    for _ in range(kills):
        child, pipe = fork(lambda writer: talkative_sweep(store, writer))
        for _ in range(chance.randint(1, MOST_EVENTS)):
            if not os.read(pipe, 1):
                survived += 1
                break
        time.sleep(chance.choice((0.0, 0.0, 0.002, 0.05)))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(pipe)
    child, _ = fork(lambda writer: void(sweep(CELLS, store, options=OPTIONS)))
    _, status = os.waitpid(child, 0)
    return {"survived": survived, "status": status}


def share(store: str, workers: int) -> dict[str, Any]:
    def one(pipe: int) -> None:
        advance = Stack.advance

        def counted(self: Stack) -> Any:
            rows = advance(self)
            if self.chunks_done == self.chunks_total:
                os.write(pipe, b"x" * len(self.cells))
            return rows

        Stack.advance = counted  # type: ignore[method-assign]
        sweep(CELLS, store, options=OPTIONS)

    children = [fork(one) for _ in range(workers)]
    trained = [len(os.fdopen(pipe, "rb").read()) for _, pipe in children]
    statuses = [os.waitpid(child, 0)[1] for child, _ in children]
    return {"trained": trained, "statuses": statuses}


def void(_: object) -> None:
    return None


if __name__ == "__main__":
    torch.set_num_threads(1)
    Stack([Cell(**BASE, steps=100)]).advance()
    order, store, *numbers = sys.argv[1:]
    answer = kill(store, *map(int, numbers)) if order == "kill" else share(store, *map(int, numbers))
    print(json.dumps(answer))
