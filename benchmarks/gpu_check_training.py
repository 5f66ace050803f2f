"""Check the training engine on a GPU against the CPU, then measure what decides how it runs there.

    python -m benchmarks.gpu_check_training --out DIR [--part check ways steps profile precision]

Each part prints lines and writes DIR/<part>.json at once, so that a run cut short leaves what it had.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from benchmarks.training import milliseconds
from rankfall.provenance import provenance
from rankfall.training.attention_seam import WAYS, attend
from rankfall.training.cell import Cell
from rankfall.training.compiled import matmul_precision
from rankfall.training.stack import Stack

Row = dict[str, Any]
RANKS = (1, 2, 4, 8, 16, 32, 64)


def check(device: str) -> Iterable[Row]:
    """Losses and weights after three steps, GPU against CPU in float64, and captured or compiled against plain."""
    small = {"dim": 16, "points": 8, "batch": 32, "feed_forward": 64, "steps": 100, "dtype": "float64"}
    variants: dict[str, Row] = {
        "published": {},
        "three layers, two copies": {"layers": 3, "multiplier": 2},
        "concatenated": {"positions": "concatenated", "position_width": 16},
        "additive, pre, layer norm": {"positions": "additive", "placement": "pre", "norm": "layer"},
        "nearest": {"task": "nearest"},
        "biased": {"task": "biased:9", "points": 2, "positions": "concatenated", "position_width": 16},
        "in-context, stable": {"task": "in-context", "mask": "causal", "recipe": "stable"},
    }
    for name, variant in variants.items():
        for compile in (False, True) if name in ("published", "in-context, stable") else (False,):
            cells = [
                Cell(**{**small, **variant}, rank=rank, seed=seed, data=data)
                for rank, seed, data in ((1, 0, "published"), (4, 0, "fresh"), (16, 1, "fresh"))
            ]
            distances = [_distance(*pair) for pair in _weights_on(cells, device, compile)]
            worst = float(torch.tensor(distances, dtype=torch.float64).max())
            yield {"variant": name, "compile": compile, "largest_difference": worst, "holds": worst < 1e-9}


def _weights_on(cells: list[Cell], device: str, compile: bool) -> list[tuple[Row, Row]]:
    there, here = Stack(cells, device, compile=compile), Stack(cells, "cpu")
    for stack in (there, here):
        stack.set_rates(1.0)
        stack.run_steps(3)
    return [(there.weights(index), here.weights(index)) for index in range(len(cells))]


def _distance(first: Row, second: Row) -> float:
    # As one tensor: its maximum is NaN when any entry is, where Python's own max would pass it over.
    return float(torch.cat([(first[name] - second[name]).abs().flatten() for name in first]).max())


def ways(device: str) -> Iterable[Row]:
    """Forward and backward of attention alone, every way, every rank, at multiplier 64 (4096 = H r columns)."""
    for tokens, batch in ((16, 256), (64, 64)):
        for rank in RANKS:
            for way in WAYS:
                for compile in (False, True):
                    yield _attend_row(device, way, rank, tokens, batch, compile)


def _attend_row(device: str, way: str, rank: int, tokens: int, batch: int, compile: bool) -> Row:
    heads = 4096 // rank
    # As the projections leave them: token-major, strides of a contiguous (M, B, n, H r).
    q, k, v = (torch.randn(1, batch, tokens, heads, rank, device=device, requires_grad=True) for _ in range(3))
    gradient = torch.randn_like(q)
    row: Row = {"way": way, "rank": rank, "tokens": tokens, "batch": batch, "compile": compile}

    def function(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return attend(q, k, v, None, 1.0 / math.sqrt(rank), way=way)

    chosen: Callable[..., torch.Tensor] = torch.compile(function, dynamic=False) if compile else function

    def work() -> None:
        torch.autograd.grad(chosen(q, k, v), (q, k, v), gradient)

    torch.compiler.reset()
    try:
        work()
        work()
        row["ms"] = milliseconds(work, 10, device)
    except (RuntimeError, torch.OutOfMemoryError) as error:
        row["failed"] = str(error).splitlines()[0][:200]
    torch.cuda.empty_cache()
    return row


def steps(device: str) -> Iterable[Row]:
    """Whole steps: captured; with TF32; also compiled. Published code: 61 to 83 ms (L=1), 286 to 419 (L=5)."""
    shapes = [(1, 64, 1), (1, 64, 8), (1, 64, 64), (1, 1, 8), (5, 64, 8), (5, 1, 64)]
    for compile, tf32 in ((False, False), (False, True), (True, True)):
        for layers, multiplier, rank in shapes if not compile else shapes[:4]:
            models = 5 if multiplier == 1 else 1
            shape = {"layers": layers, "multiplier": multiplier, "rank": rank}
            cells = [Cell(**shape, seed=seed, data="fresh") for seed in range(models)]
            row: Row = {**shape, "models": models, "compile": compile, "tf32": tf32}
            try:
                stack = Stack(cells, device, compile=compile, tf32=tf32)
                stack.prepare()
                row["ms_per_model_step"] = milliseconds(lambda s=stack: s.run_steps(50), 1, device) / 50 / models
                row["draw_ms_per_step"] = milliseconds(lambda s=stack: s.batches.fill(9_999), 1, device) / 100
                row["peak_gb"] = torch.cuda.max_memory_allocated() / 1e9
                del stack
            except (RuntimeError, torch.OutOfMemoryError) as error:
                row["failed"] = str(error).splitlines()[0][:200]
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
            yield row


def profile(device: str) -> Iterable[Row]:
    """Where the time of a step goes, kernel by kernel, without a graph."""
    for multiplier, rank, compile in ((64, 1, True), (64, 8, True), (64, 8, False), (1, 64, True)):
        stack = Stack([Cell(rank=rank, multiplier=multiplier)], device, compile=compile, tf32=True)
        stack.batches.fill(0)
        with matmul_precision(True):
            for _ in range(3):
                stack.program.step()
            torch.cuda.synchronize()
            activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
            with torch.profiler.profile(activities=activities) as recorded:
                for _ in range(5):
                    stack.program.step()
                torch.cuda.synchronize()
        kernels = [event for event in recorded.key_averages() if event.device_type.name == "CUDA"]
        for event in sorted(kernels, key=lambda e: -e.self_device_time_total)[:14]:
            yield {
                "multiplier": multiplier, "rank": rank, "compile": compile,
                "kernel": event.key[:90], "us_per_step": event.self_device_time_total / 5, "calls": event.count / 5,
            }  # fmt: skip
        torch.cuda.empty_cache()


def precision(device: str) -> Iterable[Row]:
    """Does TF32 change what is learned? One stack of ranks, 4000 steps each way."""
    for tf32 in (False, True):
        cells = [Cell(rank=rank, seed=seed, steps=4000) for rank in (8, 32, 64) for seed in (0, 1)]
        stack = Stack(cells, device, tf32=tf32)
        while stack.chunks_done < stack.chunks_total:
            stack.advance()
        for cell, summary in zip(cells, stack.summaries(), strict=True):
            yield {"tf32": tf32, "rank": cell.rank, "seed": cell.seed, **summary}


PARTS: dict[str, Callable[[str], Iterable[Row]]] = {
    "check": check, "ways": ways, "steps": steps, "profile": profile, "precision": precision,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, default=Path("gpu-check-training"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    options = parser.parse_args(arguments or [])
    if options.device == "cuda" and not torch.cuda.is_available():
        print("needs a GPU; --device cpu runs it without")
        return
    options.out.mkdir(parents=True, exist_ok=True)
    failed = False
    for part in options.part:
        rows: list[Row] = []
        for row in PARTS[part](options.device):
            rows.append(row)
            print(part, json.dumps(row), flush=True)
            found = {"part": part, "rows": rows, "provenance": provenance()}
            (options.out / f"{part}.json").write_text(json.dumps(found, indent=1) + "\n")
            failed |= row.get("holds") is False
    print(json.dumps({"failed": failed}))
    raise SystemExit(int(failed))


if __name__ == "__main__":
    main(sys.argv[1:])
