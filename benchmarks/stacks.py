"""Training steps of whole stacks through the fused kernels and through PyTorch's products, in one run on one GPU.

    python -m benchmarks.stacks [--only check|time] [--rows N ...] [--out DIR]

`check` compares the gradients of a step with those in float64, for both ways. `time` gives milliseconds a step for
stacks as amsel/fig1 trains them, compiled and captured: bare steps, steps with all that belongs to a chunk, and what
drawing new data costs. Every stack is built in a process of its own, since compiling takes longer than measuring;
they measure one after the other.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rankfall.provenance import provenance
from rankfall.training import layer_seam
from rankfall.training.cell import CHUNK, Cell
from rankfall.training.compiled import matmul_precision
from rankfall.training.data import Batches
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
    {"layers": 3, "multiplier": 1, "ranks": RANKS, "recipe": "stable", "data": "fresh"},
    {"layers": 5, "multiplier": 1, "ranks": RANKS, "recipe": "stable", "data": "fresh"},
)
REPEATS = 3


def main(arguments: list[str] | None = None) -> None:
    options = parse(arguments)
    if options.lock is not None:
        print(json.dumps(timed(options.rows[0], options.ways[0], options.lock)), flush=True)
        return
    result: dict[str, Any] = {"benchmark": "stacks", "provenance": provenance()}
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder) / "lock"
        building = [] if options.only == "check" else build_side_by_side(options, lock)
        if options.only != "time":
            with locked(lock):
                result["check"] = [errors(multiplier, layers) for multiplier, layers in ((1, 3), (8, 2))]
        with ThreadPoolExecutor(len(building) or 1) as pool:
            result["rows"] = list(pool.map(finished, building))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / "stacks.json").write_text(json.dumps(result, indent=1) + "\n")


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", choices=("check", "time"), default=None)
    parser.add_argument("--rows", type=int, nargs="+", default=tuple(range(len(ROWS))))
    parser.add_argument("--ways", nargs="+", default=WAYS, choices=WAYS)
    parser.add_argument("--lock", type=Path, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args(arguments)


class locked:  # noqa: N801, a context manager
    """Hold a file's lock: only one process at a time measures."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT)
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(self, *_: object) -> None:
        os.close(self._file)


def build_side_by_side(options: argparse.Namespace, lock: Path) -> list[subprocess.Popen[str]]:
    script = (sys.executable, "-m", "benchmarks.stacks", "--lock", str(lock))
    # The compiler starts a worker for each core, which many processes at once would only fight over.
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "4"}
    return [
        subprocess.Popen(
            (*script, "--rows", str(number), "--ways", way),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in options.rows
        for way in options.ways
    ]


def finished(process: subprocess.Popen[str]) -> dict[str, Any]:
    """A process's row, printed as soon as it is there."""
    output, problem = process.communicate()
    line = output.strip().splitlines()[-1] if output.strip() else json.dumps({"failed": problem[-600:]})
    print(line, flush=True)
    return json.loads(line)


def cells_of(row: dict[str, Any], **changes: Any) -> list[Cell]:
    settings = {"data": "published", "start": "copies", "warm_up_from": "zero"} | row | changes
    ranks = settings.pop("ranks")
    if settings["layers"] == 1:
        settings["start"] = "apart"
    return [Cell(rank=rank, seed=0, **settings) for rank in ranks]


def timed(number: int, way: str, lock: Path) -> dict[str, Any]:
    """Seconds until the first step; milliseconds of a step, of a step of a whole chunk, and of a step's draw."""
    layer_seam.choose = lambda x, columns: way
    start = time.perf_counter()
    stack = Stack(cells_of(ROWS[number]), "cuda", compile=True, tf32=True)
    stack.prepare()
    stack.run_steps(10)
    torch.cuda.synchronize()
    built = time.perf_counter() - start
    with locked(lock):
        stack.advance()
        step = milliseconds(lambda: stack.run_steps(60)) / 60
        chunk = milliseconds(stack.advance) / CHUNK
        plain = Batches(stack.cells, stack.device)
        draw, plain_draw = (milliseconds(partial(draw_again, one)) / one.window for one in (stack.batches, plain))
        memory = torch.cuda.max_memory_allocated() / 2**30
    times = {"built_s": built, "step_ms": step, "chunk_step_ms": chunk, "draw_step_ms": draw, "gib": memory}
    times |= {"plain_draw_step_ms": plain_draw}
    drawn = {"draw_share": round(draw / (step + draw), 4), "draw_compiled": stack.batches.compiled}
    return {**ROWS[number], "way": way, **{name: round(value, 4) for name, value in times.items()}, **drawn}


def draw_again(batches: Batches) -> None:
    batches.filled = None
    batches.fill(0)


def milliseconds(work: Callable[[], object]) -> float:
    """The least of a few times."""
    times = []
    for _ in range(REPEATS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        work()
        end.record()
        torch.cuda.synchronize()
        times.append(float(start.elapsed_time(end)))
    return min(times)


def errors(multiplier: int, layers: int) -> dict[str, Any]:
    """Relative errors of a step's gradients against float64: of all together, and of the worst weight."""
    row = {"layers": layers, "multiplier": multiplier, "ranks": RANKS, "batch": 64}
    truth = gradients(cells_of(row, dtype="float64"), "products")
    found: dict[str, Any] = {"layers": layers, "multiplier": multiplier}
    for way in WAYS:
        grads, again = (gradients(cells_of(row), way) for _ in range(2))
        loss = float((grads.pop("loss").double() - truth["loss"]).norm() / truth["loss"].norm())
        wrong = {name: float((grad.double() - truth[name]).norm()) for name, grad in grads.items()}
        # The key's bias moves nothing: its gradient is rounding error.
        parts = {name: wrong[name] / float(truth[name].norm()) for name in wrong if not name.endswith("key_bias")}
        worst = max(parts, key=lambda name: parts[name])
        size = sum(float(truth[name].norm()) ** 2 for name in wrong)
        found[way] = {
            "loss": loss,
            "all": (sum(error**2 for error in wrong.values()) / size) ** 0.5,
            "worst": worst,
            "worst_error": parts[worst],
            "same_twice": all(bool(torch.equal(grad, again[name])) for name, grad in grads.items()),
        }
    print(json.dumps(found), flush=True)
    return found


def gradients(cells: list[Cell], way: str, device: str = "cuda") -> dict[str, Tensor]:
    """Of the summed losses, by weight."""
    choose, layer_seam.choose = layer_seam.choose, lambda x, columns: way
    try:
        stack = Stack(cells, device)
        stack.batches.fill(0)
        inputs, targets = stack.batches.at(torch.zeros(1, dtype=torch.int64, device=device))
        with matmul_precision(True):
            losses = stack.loss(stack._weights, inputs, targets)
            grads = torch.autograd.grad(losses.sum(), list(stack._weights.values()))
    finally:
        layer_seam.choose = choose
    return {"loss": losses.detach(), **dict(zip(stack._weights, grads, strict=True))}


if __name__ == "__main__":
    main(sys.argv[1:])
