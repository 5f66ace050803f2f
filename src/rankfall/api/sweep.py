"""Train every cell of a grid that the store lacks, or say how long that would take."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.api.runs import error_by_rank
from rankfall.api.text_audits import Audited, audited_rows
from rankfall.catalogue import ENGINES
from rankfall.errors import require, require_number
from rankfall.progress import Progress, part, silent

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.store.store import Store
    from rankfall.training.engines.base import Engine
    from rankfall.training.kinds import TrainingCell

TRAINING_SHARE = 0.9
"""Of the progress that is told; the rest is for audits, where there are any."""


@final
@dataclass(frozen=True, repr=False, eq=False)
class SweepResult(Result):
    """A row per cell, in the order of the grid; after a dry run, also what would be trained and for how long."""

    verb: ClassVar[str] = "sweep"
    grid: str
    store: str
    runs: list[dict[str, Any]]
    """One record per cell: id, status, configuration, results."""
    trained: int = 0
    """Cells trained now; the others were there."""
    seconds: float = 0.0
    complete: bool = True
    """False when the sweep was stopped; the same call goes on from there."""
    to_level: list[dict[str, Any]] = field(default_factory=list)
    """Of language models: tokens and seconds to `to_loss`, or to the loss that all models of a setting reach."""
    audits: list[dict[str, Any]] = field(default_factory=list)
    """Of language models: a record per cell with the rank that heads use and need, the rank of tokens by depth,
    attention statistics, the floor by theory and the error of paper A's task, or the reason why there is none."""
    audit_layers: list[dict[str, Any]] = field(default_factory=list)
    """Of language models: a record per cell and layer, the embeddings first."""
    out_of_time: bool = False
    """Stopped because its minutes were over."""
    estimate: dict[str, Any] | None = None
    """After a dry run: `cells`, `finished`, `seconds_estimated`, `estimate_from` and `stacks`: a record for all
    stacks, trained as one each, that differ in nothing but seeds, with every setting in which cells differ, their
    operations, memory and time, those of language models also with parameters, tokens and passes over the text."""

    def tables(self) -> dict[str, pd.DataFrame]:
        """`runs`: one row per cell; after a dry run also `stacks`; of language models also `by_shape`, over
        seeds, `to_level`, tokens and time to a common loss, and `audits` and `audit_layers` of their audits."""
        shapes = {"by_shape": frame(self.by_shape), "to_level": frame(self.to_level)} if self.by_shape else {}
        audits = {"audits": self.audits, "audit_layers": self.audit_layers}
        shapes |= {name: frame(rows) for name, rows in audits.items() if rows}
        stacks = {"stacks": frame(self.estimate["stacks"])} if self.estimate else {}
        return {"runs": frame(self.runs), **shapes, **stacks}

    @property
    def by_shape(self) -> list[dict[str, Any]]:
        """Of language models: nats per byte of each shape, the mean over seeds with its interval."""
        from rankfall.training.text.comparison import by_shape

        return by_shape(self.runs)

    def _record(self) -> dict[str, Any]:
        if self.estimate is not None:
            return {**self.estimate, "runs": self.runs}
        texts = {"verdicts": self.verdicts, "by_shape": self.by_shape, "to_level": self.to_level}
        audits = {"findings": self.findings, "audits": self.audits, "audit_layers": self.audit_layers}
        return {
            "grid": self.grid,
            "store": self.store,
            "trained": self.trained,
            "seconds": self.seconds,
            "complete": self.complete,
            "runs": self.runs,
            **(texts if self.by_shape else {}),
            **(audits if self.audits else {}),
        }

    def _lines(self) -> list[str]:
        lines = [f"{self.grid}: {len(self.runs)} cells"]
        if self.estimate is not None:
            of = self.estimate
            lines.append(f"{of['finished']} finished; the rest takes about {of['seconds_estimated']:.0f} seconds")
        else:
            missing = sum(row["status"] == "missing" for row in self.runs)
            rest = f"{missing} are not finished; the same call goes on" if missing else f"all are in {self.store}"
            lines.append(f"{self.trained} trained now in {self.seconds:.0f} s; {rest}")
        done = [row for row in self.runs if row.get("mse_best") is not None]
        if done:
            best = min(done, key=lambda row: row["mse_best"])
            lines.append(f"lowest error {best['mse_best']:.4g} at rank {best['rank']}")
        return lines + self.verdicts + self.findings

    @property
    def verdicts(self) -> list[str]:
        """Of language models: which shape costs least, and whether the losses tell it from the others."""
        from rankfall.training.text.sentences import verdicts

        return verdicts(self.by_shape)

    @property
    def findings(self) -> list[str]:
        """Of language models: what the audits say about rank, a sentence for each setting."""
        from rankfall.training.text.sentences import audit_sentences

        return audit_sentences(self.audits)

    def _figure(self) -> Figure:
        if self.by_shape:
            from rankfall.drawing.loss_by_rank import loss_by_rank

            return loss_by_rank(self.by_shape)
        return error_by_rank(self.runs)


def sweep(
    grid: str | Path | Sequence[TrainingCell],
    *,
    store: str | Path = "runs",
    engine: str = "local",
    address: str | None = None,
    dry_run: bool = False,
    device: str = "auto",
    max_stack: int | None = None,
    memory: float | None = None,
    threads: int | None = None,
    compile: bool | None = None,
    tf32: bool = True,
    checkpoint_seconds: float = 60.0,
    results: str | Path | None = None,
    weights: bool = False,
    take_over: bool = False,
    tensorboard: str | Path | None = None,
    text: str | Path | None = None,
    validation: str | Path | None = None,
    where: Sequence[str] = (),
    minutes: float | None = None,
    audit: bool = True,
    to_loss: float | None = None,
    progress: Progress = silent,
    note: Callable[[str], None] | None = None,
) -> SweepResult:
    """Train every cell of a grid that the store lacks, many at once; stop it and run it again to go on.

    `grid` is a TOML file, a shipped grid by name such as `smoke`, or cells. `engine`: local or ray (`address` of a
    running cluster). `dry_run` plans and estimates only. `memory` is in GiB. `results` are committed results to go
    on from; `weights` trains also cells imported without weights; `take_over` takes cells that a process of another
    machine has claimed without waiting for its silence. `text` is the file or folder that cells of the task text are
    trained on, `validation` one to measure them on (default: part of `text` is held out). `where` takes only some
    cells: `["layers=3,5", "seed=0"]`. After `minutes` everything is saved and the result has `complete` False. With
    `audit` each language model is audited once, from its final weights, on held-out text; tokens and seconds are
    counted to `to_loss` nats per byte (default: what all models of a setting reach).
    `note` is told what a person should know.
    """
    from rankfall.store.identity import identity
    from rankfall.store.results import import_results
    from rankfall.store.store import Store
    from rankfall.training.grid import chosen_cells, read_grid
    from rankfall.training.kinds import Surroundings, step_flops
    from rankfall.training.options import Options
    from rankfall.training.sweep import row_of
    from rankfall.training.sweep import sweep as train
    from rankfall.training.threads import stack_threads

    if memory is not None:
        require_number("memory", memory, above=0, most=2**20)
    require_number("checkpoint_seconds", checkpoint_seconds, least=0)
    if minutes is not None:
        require_number("minutes", minutes, above=0)
    if to_loss is not None:
        require_number("to_loss", to_loss, above=0)
    options = Options(
        device=device,
        max_stack=max_stack,
        memory=None if memory is None else max(1, int(memory * 2**30)),
        compile=compile,
        tf32=tf32,
        threads=threads,
        checkpoint_seconds=checkpoint_seconds,
        weights=weights,
        take_over=take_over,
        tensorboard=None if tensorboard is None else os.path.abspath(tensorboard),
        address=address,
    )
    name = str(grid) if isinstance(grid, (str, Path)) else "cells"
    chosen = ENGINES[engine](options)
    tell = note or (lambda text: None)
    with _folder(Path(store), dry_run) as folder:
        # A grid that cannot be read leaves no store behind; one whose text must be kept makes it.
        around = Surroundings(
            text=None if text is None else str(text),
            validation=None if validation is None else str(validation),
            store=lambda: Store(folder).path,
            device=chosen.device() if isinstance(grid, (str, Path)) else "cpu",
            progress=progress,
            note=tell,
        )
        cells = read_grid(grid, around) if isinstance(grid, (str, Path)) else list(grid)
        given = {"text": text, "validation": validation}
        unread = [f"--{name}" for name, path in given.items() if path is not None]
        require(
            not unread or any(cell.kind == "text" for cell in cells),
            required=f"a grid with cells of the task text, to use {' and '.join(unread)}",
            got=f"{name}, which reads no text",
            remedy="leave the text out, or take a grid such as text-smoke",
        )
        cells = chosen_cells(cells, where) if where else cells
        kept = Store(folder)
        if results is not None:
            tell(f"{len(import_results(kept, Path(results)))} cells taken in from {results}")
        if dry_run:
            for damage in (kept.damage_of(identity(cell)) for cell in cells):
                if damage is not None:
                    tell(f"damaged: {damage}")
            estimate = _estimate(cells, kept, chosen, progress)
            return SweepResult(name, str(store), [row_of(cell, kept) for cell in cells], estimate=estimate)
        start = time.perf_counter()
        seconds = None if minutes is None else 60.0 * minutes
        models = [cell for cell in cells if cell.kind == "text"]
        audited = audit and bool(models)
        told = part(progress, 0.0, TRAINING_SHARE) if audited else progress
        try:
            outcome = train(cells, kept, engine=chosen, seconds=seconds, progress=told, note=tell)
            rows = [dict(row) for row in outcome.rows]
            seconds_trained = time.perf_counter() - start
            found = Audited()
            if audited:
                left = None if seconds is None else seconds - seconds_trained
                told = part(progress, TRAINING_SHARE, 1.0)
                make = outcome.complete
                with stack_threads((max(models, key=step_flops),), chosen.device(), threads):
                    found = audited_rows(rows, kept, chosen, make=make, left=left, progress=told, note=tell)
        finally:
            chosen.close()
        return SweepResult(
            grid=name,
            store=str(store),
            runs=rows,
            trained=outcome.trained,
            seconds=seconds_trained,
            complete=outcome.complete and found.complete,
            to_level=_to_level(rows, kept, to_loss),
            audits=found.rows,
            audit_layers=found.layers,
            out_of_time=outcome.out_of_time or found.out_of_time,
        )


@contextmanager
def _folder(path: Path, dry_run: bool) -> Iterator[Path]:
    """The store's folder; a dry run without one leaves nothing behind."""
    if dry_run and not path.exists():
        with tempfile.TemporaryDirectory() as empty:
            yield Path(empty) / "runs"
        return
    yield path


def _to_level(rows: list[dict[str, Any]], store: Store, level: float | None) -> list[dict[str, Any]]:
    """Of rows that have a history: results taken in from elsewhere have none."""
    from rankfall.store.run import HISTORY
    from rankfall.training.text.comparison import to_level

    runs = []
    for row in rows:
        run = store.find(row["id"]) if row.get("nats_per_byte") is not None else None
        if run is not None and HISTORY in run.manifest.names:
            runs.append((row, run.history().to_pylist()))
    return to_level(runs, level)


def _estimate(cells: list[TrainingCell], store: Store, engine: Engine, progress: Progress) -> dict[str, Any]:
    from rankfall.training.estimate import estimate
    from rankfall.training.planned import planned_rows
    from rankfall.training.sweep import plan_for

    plan = plan_for(cells, store, engine)
    progress("estimating", 0.0)
    guess = estimate(plan, store, engine.device(), workers=engine.workers(), threads=engine.options.threads)
    return {
        "cells": len(plan.cells),
        "finished": len(plan.finished),
        "seconds_estimated": guess.total,
        "estimate_from": guess.source,
        "stacks": planned_rows(plan.stacks, guess.seconds, engine.device(), store.path),
    }
