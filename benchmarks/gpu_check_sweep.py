"""Check sweeps on a GPU: going on after a kill, halving when memory runs out, and memory as planned.

    python -m benchmarks.gpu_check_sweep --out DIR [--device cuda]

Each part prints lines and writes DIR/<part>.json at once, so that a run cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from rankfall.provenance import provenance
from rankfall.store.checkpoints import Checkpoints
from rankfall.training.cell import Cell
from rankfall.training.options import Options
from rankfall.training.plan import memory_budget, stack_bytes
from rankfall.training.stack import Stack
from rankfall.training.sweep import sweep

Row = dict[str, Any]
GRID = """
dim = 16
points = 8
feed_forward = 64
batch = 64
steps = 600
data = "fresh"
rank = [1, 4, 16]
seed = [0, 1]
"""


def kill(device: str) -> Iterable[Row]:
    """A sweep killed after its second checkpoint, then finished, against one that was left alone."""
    with tempfile.TemporaryDirectory() as folder:
        grid = Path(folder) / "grid.toml"
        grid.write_text(GRID)

        def command(store: str) -> list[str]:
            options = ["--store", f"{folder}/{store}", "--device", device, "--checkpoint-seconds", "0", "--json"]
            return [sys.executable, "-m", "rankfall", "sweep", str(grid), *options]

        victim = subprocess.Popen(command("killed"), stdout=subprocess.DEVNULL)
        checkpoints = Checkpoints(Path(folder) / "killed" / ".checkpoints")
        while victim.poll() is None and _chunk(checkpoints) < 2:
            time.sleep(0.02)
        os.kill(victim.pid, signal.SIGKILL)
        victim.wait()
        chunk = _chunk(checkpoints)
        rows = [json.loads(subprocess.run(command(name), capture_output=True, check=True).stdout)["runs"]
                for name in ("killed", "alone")]  # fmt: skip
        differences = [abs(a["mse_best"] - b["mse_best"]) / b["mse_best"] for a, b in zip(*rows, strict=True)]
        yield {"killed_at_chunk": chunk, "cells": len(rows[0]), "largest_relative_difference": max(differences)}


def _chunk(checkpoints: Checkpoints) -> int:
    found = [checkpoints.find(name) for name in checkpoints.names()]
    return max((one.chunk for one in found if one is not None), default=0)


def halve(device: str) -> Iterable[Row]:
    """A stack planned for all of the memory while the allocator may have a small part of it."""
    cells = [Cell(seed=seed, multiplier=8, steps=100) for seed in range(8)]
    allowed = stack_bytes(cells[:4], device) // 2
    torch.cuda.set_per_process_memory_fraction(allowed / torch.cuda.get_device_properties(0).total_memory)
    notes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        outcome = sweep(cells, folder + "/runs", options=Options(device=device, compile=False), note=notes.append)
    torch.cuda.set_per_process_memory_fraction(1.0)
    yield {"cells": len(cells), "complete": outcome.complete, "notes": notes}


def memory(device: str) -> Iterable[Row]:
    """Bytes planned against bytes taken, for corner cells of amsel/fig1."""
    yield {"budget_gib": memory_budget(device) / 2**30}
    for layers, multiplier, rank, models in ((1, 1, 1, 5), (1, 8, 8, 5), (1, 64, 1, 2), (1, 64, 64, 2), (5, 8, 8, 2)):
        cells = [Cell(layers=layers, multiplier=multiplier, rank=rank, seed=seed) for seed in range(models)]
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        stack = Stack(cells, device)
        stack.advance()
        taken, planned = torch.cuda.max_memory_reserved(), stack_bytes(cells, device)
        del stack
        yield {
            "layers": layers,
            "multiplier": multiplier,
            "rank": rank,
            "models": models,
            "planned_gib": planned / 2**30,
            "taken_gib": taken / 2**30,
            "taken_over_planned": taken / planned,
        }


PARTS = {"kill": kill, "halve": halve, "memory": memory}


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu-check-sweep"))
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--part", nargs="+", choices=list(PARTS), default=list(PARTS))
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    for part in options.part:
        if part != "kill" and options.device == "cpu":
            print(f"{part}: needs a GPU")
            continue
        rows = []
        for row in PARTS[part](options.device):
            rows.append(row)
            print(part, json.dumps(row), flush=True)
        record = {"benchmark": f"gpu_check_sweep_{part}", "rows": rows, "provenance": provenance()}
        (options.out / f"{part}.json").write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
