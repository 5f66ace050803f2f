"""`rankfall sweep`: train every cell of a grid that the store lacks."""

from __future__ import annotations

import contextlib
import shlex
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, emit, notes, paper, table
from rankfall.cli.runs import run_table
from rankfall.progress import Progress

if TYPE_CHECKING:
    from rankfall.store.store import Store
    from rankfall.training.cell import Cell
    from rankfall.training.engines.base import Engine

QUIET = 30.0
"""Seconds between two lines of progress where no bar can be drawn."""


def sweep(
    grid: Annotated[str, typer.Argument(help="A TOML file, or a shipped grid by name, such as smoke.")],
    store: Annotated[Path, typer.Option(help="Folder that keeps the runs.")] = Path("runs"),
    engine: Annotated[str, typer.Option(help="local (this process) or ray.")] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show plan and estimate; train nothing.")] = False,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    max_stack: Annotated[int | None, typer.Option(help="Most cells trained as one program.")] = None,
    memory: Annotated[float | None, typer.Option(help="GiB that one stack may take; all that is free.")] = None,
    threads: Annotated[int | None, typer.Option(help="Processor threads of a training process.")] = None,
    compile: Annotated[bool | None, typer.Option(help="Compile the step; on GPUs if not given.")] = None,
    tf32: Annotated[bool, typer.Option(help="Matrix products in TF32 on GPUs: faster, coarser.")] = True,
    checkpoint_seconds: Annotated[float, typer.Option(help="Training time between two checkpoints.")] = 60.0,
    results: Annotated[Path | None, typer.Option(help="Go on from these committed results.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Train also cells imported without weights.")] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train every cell of a grid that the store lacks, many at once; kill it and run it again to go on.

    Example: `rankfall sweep grids/smoke.toml --store runs`
    """
    from rankfall.store.results import import_results
    from rankfall.store.store import Store
    from rankfall.training.engines.base import make_engine
    from rankfall.training.grid import read_grid
    from rankfall.training.options import Options
    from rankfall.training.sweep import sweep as train

    options = Options(
        device=device,
        max_stack=max_stack,
        memory=None if memory is None else int(memory * 2**30),
        compile=compile,
        tf32=tf32,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        weights=weights,
        tensorboard=None if tensorboard is None else str(tensorboard.resolve()),
        address=address,
    )
    cells = read_grid(grid)
    chosen = make_engine(engine, options)
    if dry_run and not store.exists():
        with tempfile.TemporaryDirectory() as empty:
            _plan(cells, Store(Path(empty) / "runs"), chosen, json)
        return
    kept = Store(store)
    if results is not None:
        notes.print(f"{len(import_results(kept, results))} cells taken in from {results}")
    if dry_run:
        _plan(cells, kept, chosen, json)
        return
    start = time.perf_counter()
    with _shown(f"{grid}") as progress:
        outcome = train(cells, kept, engine=chosen, progress=progress, note=lambda text: notes.print(text))
    if not outcome.complete:
        done = sum(row["status"] != "missing" for row in outcome.rows)
        notes.print(
            f"stopped with {done} of {len(cells)} cells finished and the rest saved; the same command goes on: "
            f"rankfall sweep {shlex.quote(grid)} --store {shlex.quote(str(store))}",
            soft_wrap=True,
        )
        raise typer.Exit(130)
    result = {
        "grid": grid,
        "store": str(store),
        "trained": outcome.trained,
        "seconds": time.perf_counter() - start,
        "runs": outcome.rows,
    }
    emit(result, as_json=json, show=lambda: _show(result))


def _show(result: dict[str, Any]) -> None:
    run_table(f"{result['grid']}: {len(result['runs'])} cells", result["runs"])
    paper.print(
        f"{result['trained']} trained now in {result['seconds']:.0f} s; all are in {result['store']}",
        markup=False,
        soft_wrap=True,
    )


def _plan(cells: list[Cell], store: Store, engine: Engine, as_json: bool) -> None:
    """What would be trained, and how long it would take."""
    from rankfall.training.estimate import estimate
    from rankfall.training.sweep import plan_for, row_of

    plan = plan_for(cells, store, engine)
    with notes.status("estimating"):
        guess = estimate(plan, store, engine.device(), workers=engine.workers())
    stacks = [
        {
            "cells": len(group),
            "task": group[0].task,
            "dim": group[0].dim,
            "layers": group[0].layers,
            "multiplier": group[0].multiplier,
            "ranks": ", ".join(str(rank) for rank in sorted({cell.rank for cell in group})),
            "steps": group[0].steps,
            "seconds": seconds,
        }
        for group, seconds in zip(plan.stacks, guess.seconds, strict=True)
    ]
    result = {
        "cells": len(plan.cells),
        "finished": len(plan.finished),
        "seconds_estimated": guess.total,
        "estimate_from": guess.source,
        "stacks": stacks,
        "runs": [row_of(cell, store) for cell in cells],
    }

    def show() -> None:
        if stacks:
            table("stacks to train", stacks)
        rest = (
            f"the rest takes about {_duration(guess.total)} (from {guess.source})" if stacks else "nothing is missing"
        )
        paper.print(f"{len(plan.finished)} of {len(plan.cells)} cells are finished; {rest}", soft_wrap=True)

    emit(result, as_json=as_json, show=show)


def _duration(seconds: float) -> str:
    if seconds != seconds:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.0f} seconds"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"


@contextlib.contextmanager
def _shown(title: str) -> Iterator[Progress]:
    """A bar with the time left on a terminal, a line now and then in a log."""
    if notes.is_terminal:
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (BarColumn(20), TaskProgressColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
        with Bar(*columns, console=notes, transient=True) as bar:
            task = bar.add_task(title, total=1.0)
            yield lambda what, share: bar.update(task, completed=share, description=what)
        return
    begun = time.perf_counter()
    state = {"said": begun, "from": -1.0}

    def line(what: str, share: float) -> None:
        moment = time.perf_counter()
        if state["from"] < 0:
            state["from"] = share
        if moment - state["said"] >= QUIET and share > state["from"]:
            left = (moment - begun) * (1 - share) / (share - state["from"])
            notes.print(f"{share:.0%} {what}; about {_duration(left)} left", soft_wrap=True)
            state["said"] = moment

    yield line
