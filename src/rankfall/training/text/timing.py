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
from rankfall.training.text.cell import TextCell
from rankfall.training.text.stack import TextStack
from rankfall.training.threads import stack_threads

STEPS, REPEATS = 5, 5
FOLDER = ".timings"


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
    kept.parent.mkdir(parents=True, exist_ok=True)
    write_bytes(kept, (json.dumps({"seconds": seconds, "hardware": hardware(), "device": device}) + "\n").encode())
    return seconds


def _measured(cell: TextCell, folder: Path, device: str) -> float:
    with stack_threads((cell,), device):
        stack = TextStack([cell], folder, device, compile=device.startswith("cuda"))
        stack.prepare()
        found = []
        for _ in range(REPEATS):
            start = time.perf_counter()
            stack.run_steps(STEPS)
            if device.startswith("cuda"):
                torch.cuda.synchronize(device)
            found.append((time.perf_counter() - start) / STEPS)
    return statistics.median(found)
