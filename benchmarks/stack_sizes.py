"""How many cells to stack on a processor: time per model-step for stacks of 1 to 16, by the work of one cell.

    python -m benchmarks.stack_sizes

Processor time of one thread, the least of several runs taken in turns: what other programs do on the machine hardly
shows in it. `chosen` is what the plan takes (`rankfall.training.plan`), `gain` what it saves against one at a time.
"""

from __future__ import annotations

import time
from typing import Any

import torch

from benchmarks._harness import report
from rankfall.training.cell import Cell
from rankfall.training.plan import group_cells, step_flops
from rankfall.training.stack import Stack

SIZES = (1, 2, 4, 8, 16)
SHAPES: tuple[dict[str, Any], ...] = (
    {"dim": 16, "points": 8, "rank": 4, "batch": 32, "feed_forward": 32},
    {"dim": 16, "points": 8, "rank": 4, "batch": 64, "feed_forward": 64},
    {"dim": 32, "points": 8, "rank": 8, "batch": 64, "feed_forward": 128},
    {"dim": 32, "points": 16, "rank": 8, "batch": 64, "feed_forward": 256},
    {"dim": 64, "points": 16, "rank": 8, "batch": 32, "feed_forward": 256},
    {"dim": 64, "points": 16, "rank": 8, "batch": 64, "feed_forward": 512},
    {"dim": 64, "points": 16, "rank": 8, "batch": 128, "feed_forward": 1024},
    {"dim": 64, "points": 16, "rank": 8},
)
PLENTY = 2**40
WORK, LARGEST_STEP = 4e9, 8e9
"""Operations of all repeats of one size, and of the largest stack that is tried."""


def main() -> None:
    torch.set_num_threads(1)
    report("stack_sizes", [row(shape) for shape in SHAPES])


def row(shape: dict[str, Any]) -> dict[str, Any]:
    work = step_flops(Cell(**shape))
    sizes = [size for size in SIZES if size == 1 or size * work <= LARGEST_STEP]
    stacks = [Stack([Cell(seed=seed, data="fresh", **shape) for seed in range(size)]) for size in sizes]
    for stack in stacks:
        stack.run_steps(1)
    times: list[list[float]] = [[] for _ in stacks]
    for _ in range(max(3, min(40, int(WORK / work)))):
        for stack, taken in zip(stacks, times, strict=True):
            start = time.process_time()
            stack.run_steps(1)
            taken.append((time.process_time() - start) * 1e3 / len(stack.cells))
    least = dict(zip(sizes, map(min, times), strict=True))
    cells = [Cell(seed=seed, **shape) for seed in range(max(SIZES))]
    chosen = max(size for size in sizes if size <= max(map(len, group_cells(cells, memory=PLENTY))))
    return {
        "gflop": work / 1e9,
        **{f"ms_{size}": least.get(size) for size in SIZES},
        "chosen": chosen,
        "gain": least[1] / least[chosen],
    }


if __name__ == "__main__":
    main()
