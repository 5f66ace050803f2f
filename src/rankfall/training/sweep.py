"""A sweep: train the cells that a store lacks on an engine, a row for each cell, and records over seeds."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from rankfall.catalogue import CELL_KINDS, ENGINES
from rankfall.progress import Progress, silent
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.claims import Claims
from rankfall.store.files import StorageError
from rankfall.store.identity import identity, settings
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.engines.base import Engine
from rankfall.training.estimate import Tally
from rankfall.training.kinds import TrainingCell, kind_of
from rankfall.training.options import Options
from rankfall.training.plan import Plan, has_leftovers, make_plan, tidy
from rankfall.training.work import Watch, stop_on_signals

Trained = tuple[Cell, Mapping[str, Any]]
"""A cell and its summary."""

GROUPED = ("layers", "multiplier", "rank", "points", "positions", "task", "recipe", "data")
MEASURED = ("mse_best", "mse_final", "mse_fresh")


@dataclass(frozen=True)
class SweepRows:
    """What a sweep gave: a row per cell in their order, and whether all are finished."""

    rows: tuple[dict[str, Any], ...]
    trained: int
    complete: bool
    out_of_time: bool = False
    """Ended by its time limit, not by a signal."""


def sweep(
    cells: Sequence[TrainingCell],
    store: Store | Path | str,
    *,
    engine: str | Engine = "local",
    options: Options | None = None,
    seconds: float | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] = lambda text: None,
) -> SweepRows:
    """Train the cells that the store lacks and return a row for each cell.

    Safe to kill at any moment and to run again, also by several processes on one store: finished cells are never
    trained again, and unfinished stacks go on from their checkpoints. Ctrl-C saves first and returns with
    `complete` False, and so does a sweep that has taken `seconds`, at its next chunk.
    """
    end = math.inf if seconds is None else monotonic() + seconds
    store = store if isinstance(store, Store) else Store(store)
    chosen = ENGINES[engine](options or Options()) if isinstance(engine, str) else engine
    plan = plan_for(cells, store, chosen)
    if plan.stacks:
        set_aside_damaged(store, note)
    tally = Tally(plan, progress)
    complete, told_to_stop = True, False
    try:
        if plan.stacks:
            for text in slower(plan, chosen.device()):
                note(text)
            with stop_on_signals(lambda: note("stopping after this chunk; Ctrl-C again to stop at once")) as stop:
                complete = chosen.run(plan, store, Watch(lambda: stop() or monotonic() >= end, tally.chunk, note))
                told_to_stop = stop()
        elif has_leftovers(store):
            # a sweep that was killed when all was done but the tidying; a store that may only be read stays as it is
            with contextlib.suppress(StorageError), Claims(store.claims_folder, note=note) as claims:
                tidy(store, claims)
    finally:
        if chosen is not engine:
            chosen.close()
    rows = tuple(row_of(cell, store) for cell in cells)
    trained = len(plan.cells) - len(plan.finished) - len(store.missing(plan.cells, chosen.options.parts))
    return SweepRows(rows, trained, complete, out_of_time=not complete and not told_to_stop)


def slower(plan: Plan, device: str) -> list[str]:
    """What a person should know about cells that do not train as fast as others, a line for each kind of cell."""
    cells = [cell for stack in plan.stacks for cell in stack]
    kinds = dict.fromkeys(cell.kind for cell in cells)
    found = (CELL_KINDS[kind].slower([cell for cell in cells if cell.kind == kind], device) for kind in kinds)
    return [text for text in found if text is not None]


def plan_for(cells: Sequence[TrainingCell], store: Store, engine: Engine) -> Plan:
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


def row_of(cell: TrainingCell, store: Store) -> dict[str, Any]:
    """A cell's row: id, status, configuration and, when it is finished, its results."""
    id = identity(cell)
    bare = {"id": id, "status": "missing", **settings(cell), **dict.fromkeys([*kind_of(cell).errors, "seconds"])}
    return bare | store.run(cell).summary() if store.has(id) else bare


def set_aside_damaged(store: Store, note: Callable[[str], None]) -> None:
    """Move away what stands in a sweep's way and belongs to no claim; damaged runs are for those who claim them."""
    store.repair(note)
    checkpoints = Checkpoints(store.checkpoints_folder)
    for name, damage in checkpoints.damaged().items():
        note(f"{damage}; moved to {checkpoints.set_aside(name)}, and its cells start anew")


def aggregate(trained: Iterable[Trained], by: tuple[str, ...] = GROUPED) -> list[dict[str, Any]]:
    """One record per group of cells that agree in the fields `by`.

    For each measured error over seeds: `_best` (least), `_mean`, `_spread` (largest minus least) and `_deviation`
    (standard, None below two). Diverged runs are counted and left out of the errors. Where a group holds several
    settings, such as learning rates, the record is of the one with the lowest `mse_best`: runs at a bad rate say
    nothing about the spread over seeds.
    """
    groups: dict[tuple[Any, ...], list[Trained]] = {}
    for cell, summary in trained:
        groups.setdefault(tuple(getattr(cell, name) for name in by), []).append((cell, summary))
    return [_record(dict(zip(by, key, strict=True)), members) for key, members in sorted(groups.items(), key=_order)]


def _order(group: tuple[tuple[Any, ...], list[Trained]]) -> list[tuple[bool, Any]]:
    # Numbers by size, names by letter, nothing before either: one field holds one kind, except for None.
    return [(value is not None, 0 if value is None else value) for value in group[0]]


def _record(key: dict[str, Any], members: list[Trained]) -> dict[str, Any]:
    settings: dict[Cell, list[Trained]] = {}
    for cell, summary in members:
        settings.setdefault(dataclasses.replace(cell, seed=0), []).append((cell, summary))
    members = min(settings.values(), key=_least)
    done = [summary for _, summary in members if summary["status"] == "done"]
    record = {**key, "heads": members[0][0].heads, "runs": len(done), "diverged": len(members) - len(done)}
    for name in MEASURED:
        values = [float(summary[name]) for summary in done if math.isfinite(summary[name])]
        record |= {
            f"{name}_best": min(values) if values else None,
            f"{name}_mean": statistics.fmean(values) if values else None,
            f"{name}_spread": max(values) - min(values) if values else None,
            f"{name}_deviation": statistics.stdev(values) if len(values) > 1 else None,
        }
    return record


def _least(members: list[Trained]) -> float:
    found = (float(summary["mse_best"]) for _, summary in members if summary["status"] == "done")
    return min((error for error in found if math.isfinite(error)), default=math.inf)
