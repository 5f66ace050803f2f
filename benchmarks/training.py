"""Model-steps per second of stacked training against one model at a time, for the corner cells of amsel/fig1.

    python -m benchmarks.training [--device cuda] [--compile] [--tf32] [--out DIR]

Both sides take the same kind of step (new data, loss, gradient, AdamW) in the same run on the same machine.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.plain_encoder import PlainEncoder, PlainTrainer
from rankfall.provenance import provenance
from rankfall.training.cell import Cell
from rankfall.training.plan import stack_bytes
from rankfall.training.stack import Stack

RANKS, MULTIPLIERS, LAYERS = (1, 8, 64), (1, 8, 64), (1, 5)
MEMORY = {"cpu": 2e9, "cuda": 40e9}


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments or [])
    rows = []
    for layers, multiplier, rank in itertools.product(options.layers, options.multipliers, options.ranks):
        row = corner(rank, multiplier, layers, options)
        rows.append(row)
        print(
            f"L={layers} m={multiplier:2d} r={rank:2d}  stack of {row['models']:2d}: "
            f"{row['ms_per_model_step']:9.3f} ms per model-step, "
            f"plain {row['plain_ms']:9.3f}, ratio {row['ratio']:7.1f}",
            flush=True,
        )
    result = {"benchmark": "training", **vars(options), "out": None, "rows": rows, "provenance": provenance()}
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"training-{options.device}{'-compiled' if options.compile else ''}.json").write_text(
            json.dumps(result, indent=1) + "\n"
        )
    print(json.dumps(result))


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--plain-tf32", action="store_true", help="let the plain implementation use TF32 as well")
    parser.add_argument("--models", type=int, default=5, help="models in a stack, fewer where memory is short")
    parser.add_argument("--alone", action="store_true", help="also time our engine with a single model")
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--multipliers", type=int, nargs="+", default=None)
    parser.add_argument("--layers", type=int, nargs="+", default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args(arguments)
    if options.steps is None:
        options.steps = 50 if options.device == "cuda" else 2
    # The widest cells take minutes a step on a processor; without a GPU the default leaves them out.
    widest = options.device == "cuda"
    options.layers = options.layers or LAYERS
    options.multipliers = options.multipliers or (MULTIPLIERS if widest else MULTIPLIERS[:2])
    return options


def corner(rank: int, multiplier: int, layers: int, options: argparse.Namespace) -> dict[str, Any]:
    """One cell: a stack of seeds, a stack of one, and the plain implementation."""
    cells = [
        Cell(rank=rank, multiplier=multiplier, layers=layers, seed=s, data="fresh") for s in range(options.models)
    ]
    fitting = max(1, min(len(cells), int(MEMORY[options.device] // stack_bytes(cells[:1], options.device))))
    stacked = stack_step_ms(cells[:fitting], options) / fitting
    alone = stack_step_ms(cells[:1], options) if options.alone and fitting > 1 else None
    plain = plain_step_ms(rank, multiplier, layers, options)
    return {
        "layers": layers,
        "multiplier": multiplier,
        "rank": rank,
        "heads": cells[0].heads,
        "models": fitting,
        "ms_per_model_step": stacked,
        "model_steps_per_second": 1e3 / stacked,
        "alone_ms": alone,
        "plain_ms": plain,
        "ratio": plain / stacked,
    }


def stack_step_ms(cells: list[Cell], options: argparse.Namespace) -> float:
    stack = Stack(cells, options.device, compile=options.compile, tf32=options.tf32)
    stack.prepare()
    steps = min(options.steps, stack.batches.window)
    # A window of fresh batches lasts `window` steps: its drawing counts in that proportion.
    drawing = milliseconds(lambda: stack.batches.fill(10_000), 1, options.device) / stack.batches.window
    stack.batches.fill(0)
    return drawing + milliseconds(lambda: stack.run_steps(steps), 1, options.device) / steps


def plain_step_ms(rank: int, multiplier: int, layers: int, options: argparse.Namespace) -> float:
    torch.set_float32_matmul_precision("high" if options.plain_tf32 else "highest")
    trainer = PlainTrainer(PlainEncoder(64, rank, multiplier, layers), 256, 16, 64, options.device)
    trainer.step()
    steps = max(2, options.steps // 5)
    return milliseconds(trainer.step, steps, options.device)


def milliseconds(work: Callable[[], object], times: int, device: str) -> float:
    """Mean wall time of one call, the device's queue empty before and after."""
    synchronise(device)
    start = time.perf_counter()
    for _ in range(times):
        work()
    synchronise(device)
    return (time.perf_counter() - start) * 1e3 / times


def synchronise(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main(sys.argv[1:])
