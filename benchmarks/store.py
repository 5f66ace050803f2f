"""What keeping runs costs: writing, finding and asking them, and a sweep against the bare training loop."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch

from benchmarks._harness import report, seconds
from rankfall.store.identity import settings
from rankfall.store.query import rows_of, select
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.options import Options
from rankfall.training.plan import make_plan
from rankfall.training.stack import Stack
from rankfall.training.sweep import sweep

RUNS, ROWS = 500, 200
"""Runs in the store, and rows of history in each."""


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        report("store", [_store(Store(Path(folder) / "runs"))])
        report("sweep_against_bare_loop", [_sweep(Path(folder))])


def _store(store: Store) -> dict[str, object]:
    cells = [Cell(seed=seed) for seed in range(RUNS)]
    weights = {"matrix": torch.zeros(64, 64)}
    history = [{"chunk": chunk, "step": 100 * chunk, "loss": 1.0 / (chunk + 1)} for chunk in range(ROWS)]
    start = time.perf_counter()
    for cell in cells:
        summary = {"status": "done", **settings(cell), "mse_best": 0.5}
        store.write(cell, summary=summary, history=history, weights=weights, environment={})
    written = time.perf_counter() - start
    query = "select seed, min(loss) from runs join history using (id) group by seed"
    return {
        "runs": RUNS,
        "write_ms_per_run": 1e3 * written / RUNS,
        "list_s": seconds(lambda: rows_of(store), repeats=3),
        "plan_s": seconds(lambda: make_plan(cells, store, memory=2**34), repeats=3),
        "sql_over_history_s": seconds(lambda: select(store, query), repeats=3),
    }


def _sweep(folder: Path) -> dict[str, object]:
    """The quick grid's shapes for 500 steps, a checkpoint after every chunk, against nothing but training."""
    cells = [
        Cell(dim=16, points=8, rank=r, feed_forward=64, batch=64, steps=500, seed=s) for r in (4, 16) for s in (0, 1)
    ]
    stack = Stack(cells)
    start = time.perf_counter()
    while stack.chunks_done < stack.chunks_total:
        stack.advance()
    stack.summaries()
    bare = time.perf_counter() - start
    start = time.perf_counter()
    sweep(cells, folder / "swept", options=Options(device="cpu", checkpoint_seconds=0))
    swept = time.perf_counter() - start
    return {"cells": len(cells), "bare_s": bare, "sweep_s": swept, "ratio": swept / bare}
