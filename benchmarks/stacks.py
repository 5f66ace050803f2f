"""Training steps of whole stacks through the fused kernels and through PyTorch's products, in one run on one GPU.

    python -m benchmarks.stacks [--only check|time] [--rows N ...] [--out DIR]

`check` compares the gradients of a step with those in float64, for both ways. `time` gives milliseconds a step for
stacks as amsel/fig1 trains them, compiled and captured, with new data where the cells ask for it, and what drawing costs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfall.provenance import provenance
from rankfall.training import layer_seam
from rankfall.training.cell import CHUNK, Cell
from rankfall.training.compiled import matmul_precision
from rankfall.training.stack import Stack

WAYS = ("products", "kernel")
RANKS = (1, 2, 4, 8, 16, 32, 64)
ROWS: tuple[dict[str, Any], ...] = (
    {"layers": 5, "multiplier": 8, "ranks": (1, 2, 4, 16, 32)},
    {"layers": 3, "multiplier": 8, "ranks": (1, 2, 4, 16, 32)},
    {"layers": 5, "multiplier": 1, "ranks": RANKS},
    {"layers": 3, "multiplier": 1, "ranks": RANKS},
    {"layers": 3, "multiplier": 1, "ranks": (8,), "recipe": "stable", "data": "fresh"},
    {"layers": 1, "multiplier": 64, "ranks": (2,)},
    {"layers": 3, "multiplier": 64, "ranks": (1, 8)},
)


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.phase == "compile one":
        timed(options.rows[0], options.ways[0])
        return
    result: dict[str, Any] = {"benchmark": "stacks", "provenance": provenance()}
    if options.only != "time":
        result["check"] = [errors(multiplier, layers) for multiplier, layers in ((1, 3), (8, 2))]
    if options.only != "check":
        compile_side_by_side(options)
        result["rows"] = []
        for number in options.rows:
            row = {**ROWS[number]} | {way: timed(number, way) for way in options.ways}
            result["rows"].append(row)
            print(json.dumps(row), flush=True)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "stacks.json").write_text(json.dumps(result, indent=1) + "\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("check", "time"), default=None)
    parser.add_argument("--rows", type=int, nargs="+", default=tuple(range(len(ROWS))))
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--phase", choices=("all", "compile one"), default="all")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args(arguments)


def compile_side_by_side(options: argparse.Namespace) -> None:
    """Fill the compiler's cache on disk from processes of their own: compiling takes longer than measuring."""
    running = []
    for number in options.rows:
        for way in options.ways:
            chosen = ("--phase", "compile one", "--rows", str(number), "--ways", way)
            running.append(
                subprocess.Popen(
                    (sys.executable, "-m", "benchmarks.stacks", *chosen),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
    for process in running:
        process.wait()


def cells_of(row: dict[str, Any], **changes: Any) -> list[Cell]:
    settings = {"data": "published", "start": "copies", "warm_up_from": "zero"} | row | changes
    ranks = settings.pop("ranks")
    if settings["layers"] == 1:
        settings["start"] = "apart"
    return [Cell(rank=rank, seed=0, **settings) for rank in ranks]


def timed(number: int, way: str) -> dict[str, float]:
    """Seconds until the first step; milliseconds of a step, of a chunk's step with all that belongs to it, of a draw."""
    choose, layer_seam.choose = layer_seam.choose, lambda x, columns: way
    try:
        start = time.perf_counter()
        stack = Stack(cells_of(ROWS[number]), "cuda", compile=True, tf32=True)
        stack.prepare()
        torch.cuda.synchronize()
        built = time.perf_counter() - start
        stack.run_steps(10)
        step = milliseconds(lambda: stack.run_steps(60)) / 60
        stack.advance()
        chunk = milliseconds(stack.advance) / CHUNK
        draw = milliseconds(lambda: draw_again(stack)) / stack.batches.window
    finally:
        layer_seam.choose = choose
    return {"built_s": built, "step_ms": step, "chunk_step_ms": chunk, "draw_step_ms": draw}


def draw_again(stack: Stack) -> None:
    stack.batches.filled = None
    stack.batches.fill(0)


def milliseconds(work: Any) -> float:
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    work()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end))


def errors(multiplier: int, layers: int) -> dict[str, Any]:
    """Relative errors of a step's gradients against float64: of all together, and of the worst weight."""
    row = {"layers": layers, "multiplier": multiplier, "ranks": RANKS, "batch": 64}
    _, truth = gradients(cells_of(row, dtype="float64"), "products")
    found: dict[str, Any] = {"layers": layers, "multiplier": multiplier}
    for way in WAYS:
        losses, grads = gradients(cells_of(row), way)
        # The key's bias moves nothing: its gradient is rounding error.
        parts = {
            name: float((grad.double() - truth[name]).norm() / truth[name].norm())
            for name, grad in grads.items()
            if not name.endswith("key_bias")
        }
        difference = sum(float((grad.double() - truth[name]).norm()) ** 2 for name, grad in grads.items())
        size = sum(float(grad.norm()) ** 2 for grad in truth.values())
        worst = max(parts, key=lambda name: parts[name])
        again = gradients(cells_of(row), way)[1]
        found[way] = {
            "all": (difference / size) ** 0.5,
            "worst": worst,
            "worst_error": parts[worst],
            "same_twice": all(bool(torch.equal(grad, again[name])) for name, grad in grads.items()),
        }
    print(json.dumps(found), flush=True)
    return found


def gradients(cells: list[Cell], way: str) -> tuple[Tensor, dict[str, Tensor]]:
    choose, layer_seam.choose = layer_seam.choose, lambda x, columns: way
    try:
        stack = Stack(cells, "cuda")
        stack.batches.fill(0)
        inputs, targets = stack.batches.at(torch.zeros(1, dtype=torch.int64, device="cuda"))
        with matmul_precision(True):
            losses = stack.loss(stack._weights, inputs, targets)
            grads = torch.autograd.grad(losses.sum(), list(stack._weights.values()))
    finally:
        layer_seam.choose = choose
    return losses.detach(), dict(zip(stack._weights, grads, strict=True))


if __name__ == "__main__":
    main(sys.argv[1:])
