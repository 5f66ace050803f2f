"""How long a step of a language model takes here, measured."""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import asdict, replace
from functools import lru_cache
from pathlib import Path

import torch

from rankfall.errors import require
from rankfall.provenance import hardware
from rankfall.store.files import write_bytes
from rankfall.store.identity import identity
from rankfall.store.lock import FileLock
from rankfall.training.text.cell import TextCell
from rankfall.training.text.stack import TextStack
from rankfall.training.threads import stack_threads
from rankfall.training.work import release_memory

STEPS, REPEATS = 5, 5
FOLDER = ".timings"


def device_turn(folder: Path) -> FileLock:
    """The right to have the device to oneself: steps that are timed in a store never overlap, whichever process
    times them."""
    return FileLock(folder / FOLDER / "turn.lock")


@lru_cache(maxsize=4096)
def step_seconds(cell: TextCell, folder: Path | None, device: str) -> float:
    """The median of a few short trials, compiled on a GPU; kept in the store, so that a sweep asked for again solves
    for the same models and trains none of them twice."""
    require(folder is not None, required="a store to keep timings in", got="none", remedy="solve in a sweep")
    assert folder is not None
    plain = replace(cell, seed=0, learning_rate=1e-3, steps=100, budget="none")
    kept = folder / FOLDER / f"{identity({**asdict(plain), 'hardware': hardware(), 'device': device})}.json"
    if kept.exists():
        return float(json.loads(kept.read_text(encoding="utf-8"))["seconds"])
    seconds = _measured(plain, folder, device)
    release_memory(device)
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(kept, (json.dumps({"seconds": seconds, "hardware": hardware(), "device": device}) + "\n").encode())
    return seconds


def _measured(cell: TextCell, folder: Path, device: str) -> float:
    with stack_threads((cell,), device):
        stack = TextStack([cell], folder, device, compile=device.startswith("cuda"))
        stack.prepare()
        # compiled before its turn: that takes far longer than the trial, and may overlap with what others do
        with device_turn(folder):
            return statistics.median(_trial(stack, device) for _ in range(REPEATS))


def _trial(stack: TextStack, device: str) -> float:
    start = time.perf_counter()
    stack.run_steps(STEPS)
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / STEPS
