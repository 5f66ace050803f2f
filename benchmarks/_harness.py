"""How every benchmark times and prints: a readable table, then one JSON line with where it was run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from rankfall.provenance import provenance


def seconds(work: Callable[[], object], *, repeats: int = 5, warm_up: int = 1, device: str = "cpu") -> float:
    """Median time of one call, after warming up; a GPU is waited for."""
    times = []
    for attempt in range(warm_up + repeats):
        wait(device)
        start = time.perf_counter()
        work()
        wait(device)
        if attempt >= warm_up:
            times.append(time.perf_counter() - start)
    return statistics.median(times)


def alternately(*works: Callable[[], object], repeats: int = 5, device: str = "cpu") -> list[float]:
    """Median time of each, taken in turns so that a noisy minute of the machine hits all alike."""
    rounds = [
        [seconds(work, repeats=1, warm_up=int(k == 0), device=device) for work in works] for k in range(repeats)
    ]
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def report(name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows as a table, then the same as one line of JSON."""
    columns = list(rows[0])
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(column), *(len(line[k]) for line in cells)) for k, column in enumerate(columns)]
    for line in [columns, *cells]:
        print("  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)), flush=True)
    print(
        json.dumps({"benchmark": name, "rows": [dict(row) for row in rows], "provenance": provenance()}), flush=True
    )


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def wait(device: str) -> None:
    """Until a GPU has done what it was asked for."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()
