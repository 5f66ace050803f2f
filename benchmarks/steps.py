"""Whole training steps at the corners of amsel/fig1 against their floor, through the kernel and PyTorch's attention.

    python -m benchmarks.steps [--out DIR] [--ranks ...] [--multipliers ...] [--layers ...]

A GPU only. Two floors, from rates measured in the same run: the step's arithmetic or, if slower, the bytes of
weights, moments and batch (`floor_ms`); and the bytes that go through memory when projections and attention are
separate kernels (`seam_floor_ms`). All sides are compiled and captured as one graph; steps of one model.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch

from rankfall.provenance import provenance
from rankfall.training import attention_seam
from rankfall.training.cell import Cell
from rankfall.training.parameters import layout
from rankfall.training.plan import step_flops
from rankfall.training.stack import Stack

RANKS, MULTIPLIERS, LAYERS = (1, 8, 64), (1, 8, 64), (1, 5)
WAYS = ("kernel", "fused")
STEPS = 60


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    corners = list(itertools.product(options.layers, options.multipliers, options.ranks, options.ways))
    if options.phase == "compile one":
        step_ms(*corners[0], steps=1)
        return
    if options.phase in ("all", "compile"):
        compile_side_by_side(corners)
    if options.phase == "compile":
        return
    rates = ceilings()
    print({name: f"{rate:.3g}" for name, rate in rates.items()}, flush=True)
    rows = []
    for layers, multiplier, rank in itertools.product(options.layers, options.multipliers, options.ranks):
        cell = corner(rank, multiplier, layers)
        row: dict[str, Any] = {"layers": layers, "multiplier": multiplier, "rank": rank, "heads": cell.heads}
        row |= floors(cell, rates)
        for way in options.ways:
            row[f"{way}_ms"] = step_ms(layers, multiplier, rank, way, STEPS)
        row["share_of_floor"] = row["floor_ms"] / row["kernel_ms"]
        row["share_of_seam_floor"] = row["seam_floor_ms"] / row["kernel_ms"]
        rows.append(row)
        print(" ".join(f"{k}={v:.3f}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items()), flush=True)
    result = {"benchmark": "steps", "ceilings": rates, "rows": rows, "provenance": provenance()}
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "steps.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--multipliers", type=int, nargs="+", default=MULTIPLIERS)
    parser.add_argument("--layers", type=int, nargs="+", default=LAYERS)
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=attention_seam.WAYS)
    parser.add_argument("--phase", choices=("all", "compile", "compile one", "time"), default="all")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args(arguments)


def compile_side_by_side(corners: list[tuple[int, int, int, str]]) -> None:
    """Fill the compiler's cache on disk from processes of their own: compiling takes longer than measuring."""
    script = (sys.executable, "-m", "benchmarks.steps", "--phase", "compile one")
    running = []
    for layers, multiplier, rank, way in corners:
        chosen = ("--layers", str(layers), "--multipliers", str(multiplier), "--ranks", str(rank), "--ways", way)
        running.append(subprocess.Popen(script + chosen, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    for process in running:
        process.wait()


def corner(rank: int, multiplier: int, layers: int) -> Cell:
    return Cell(rank=rank, multiplier=multiplier, layers=layers, seed=0, data="published")


def step_ms(layers: int, multiplier: int, rank: int, way: str, steps: int) -> float:
    attention_seam.choose = lambda q, k, v: way
    stack = Stack([corner(rank, multiplier, layers)], "cuda", compile=True, tf32=True)
    stack.prepare()
    stack.run_steps(min(10, steps))
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    stack.run_steps(steps)
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / steps


def floors(cell: Cell, rates: dict[str, float]) -> dict[str, float]:
    """Operations and bytes of a step, and the times they cannot undercut."""
    operations = step_flops(cell)
    state = 4 * (6 * layout(cell).parameters + 2 * cell.batch * cell.tokens * cell.dim)
    # Of each (tokens, columns) tensor: q, k, v, output written and read; the output's gradient written and read; q,
    # k, v read again and the output once more, for its weights; three gradients written and read.
    tensor = 4 * cell.batch * cell.tokens * cell.heads * cell.rank
    through = state + cell.layers * 20 * tensor
    return {
        "gflop": operations / 1e9,
        "floor_ms": 1e3 * max(operations / rates["flops"], state / rates["bytes"]),
        "seam_mb": through / 1e6,
        "seam_floor_ms": 1e3 * max(operations / rates["flops"], through / rates["bytes"]),
    }


def ceilings() -> dict[str, float]:
    """Operations a second of a large TF32 product, and bytes a second of a large copy."""
    from triton.testing import do_bench

    torch.set_float32_matmul_precision("high")
    a, b = (torch.randn(8192, 8192, device="cuda") for _ in range(2))
    product = do_bench(lambda: a @ b, return_mode="median")
    source = torch.randn(1 << 29, device="cuda")
    target = torch.empty_like(source)
    copy = do_bench(lambda: target.copy_(source), return_mode="median")
    return {"flops": 2 * 8192**3 / product * 1e3, "bytes": 2 * 4 * (1 << 29) / copy * 1e3}


if __name__ == "__main__":
    main(sys.argv[1:])
