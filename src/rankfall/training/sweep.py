"""A sweep: plan what is missing, have an engine train it, and read the table from the store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rankfall.runs import Store, identity, settings
from rankfall.training.cell import Cell
from rankfall.training.engines import Engine, make_engine
from rankfall.training.interrupt import stop_on_signals
from rankfall.training.kernels.choice import misfit
from rankfall.training.options import Options
from rankfall.training.plan import Group, Plan, make_plan
from rankfall.training.tally import Progress, Tally
from rankfall.training.work import Watch

RESULTS = ("mse_best", "mse_final", "seconds")
"""Columns that every row of a sweep has, None where a cell is not finished."""


@dataclass(frozen=True)
class Outcome:
    """What a sweep gave: a row per cell in the order asked for, and whether all are finished."""

    rows: tuple[dict[str, Any], ...]
    trained: int
    complete: bool


def sweep(
    cells: Sequence[Cell],
    store: Store | Path | str,
    *,
    engine: str | Engine = "local",
    options: Options | None = None,
    progress: Callable[[Progress], None] = lambda now: None,
    note: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Train the cells that the store lacks and return a row for each cell.

    Safe to kill at any moment and to run again, also by several processes on one store: finished cells are never
    trained again, and unfinished stacks go on from their checkpoints. Ctrl-C saves first and returns with
    `complete` False.
    """
    store = store if isinstance(store, Store) else Store(store)
    chosen = make_engine(engine, options or Options()) if isinstance(engine, str) else engine
    plan = plan_for(cells, store, chosen)
    tally = Tally(plan)

    def chunk(group: Group, chunks: int, rows: Sequence[Mapping[str, Any]]) -> None:
        progress(tally.chunk(group, chunks, rows))

    complete = True
    try:
        if plan.stacks:
            if slower := without_kernel(plan, chosen.device()):
                note(slower)
            with stop_on_signals(lambda: note("stopping after this chunk; Ctrl-C again to stop at once")) as stop:
                complete = chosen.run(plan, store, Watch(stop, chunk, note))
    finally:
        if chosen is not engine:
            chosen.close()
    rows = tuple(row_of(cell, store) for cell in cells)
    trained = len(plan.cells) - len(plan.finished) - len(store.missing(plan.cells, chosen.options.parts))
    return Outcome(rows, trained, complete)


def without_kernel(plan: Plan, device: str) -> str | None:
    """On a GPU, how many cells cannot use the fused attention kernel and why the first of them cannot."""
    if not device.startswith("cuda"):
        return None
    cells = [cell for stack in plan.stacks for cell in stack]
    reasons = [
        misfit("cuda", getattr(torch, cell.dtype), cell.tokens, max(cell.rank, cell.value_width)) for cell in cells
    ]
    found = [reason for reason in reasons if reason is not None]
    if not found:
        return None
    return f"{len(found)} of {len(cells)} cells train without the fused attention kernel: {found[0]}"


def plan_for(cells: Sequence[Cell], store: Store, engine: Engine) -> Plan:
    """The plan of a sweep on an engine."""
    return make_plan(
        tuple(dict.fromkeys(cells)),
        store,
        memory=engine.memory(),
        device=engine.device(),
        max_stack=engine.options.max_stack,
        at_least=engine.workers(),
        parts=engine.options.parts,
    )


def row_of(cell: Cell, store: Store) -> dict[str, Any]:
    """A cell's row: id, status, configuration and, when it is finished, its results."""
    found = store.find(identity(cell))
    bare = {"id": identity(cell), "status": "missing", **settings(cell), **dict.fromkeys(RESULTS)}
    return bare if found is None else bare | found.summary()
