"""The experiment on head rank in language models, within an allowance of time: the most telling models first.

    python scripts/corpora.py corpora --store runs
    python scripts/text_rank.py --grid text-time text-rank --store runs --out results/text-rank --seconds 600

Trains the cells of grids in the order of their tables and audits each model. Every shape is compiled anew, so several
processes compile side by side while one at a time trains: training has the GPU for itself, and `seconds` in a row are
the model's own. Shapes that a measured time is solved for (`step_seconds`) are solved the same way, side by side, and
trained by the process that solved them; a shape that a run of another seed has, in the store or in --results, is not
solved again. After every model the results are written again, so that a kill loses what is being trained and nothing
else. `rankfall sweep text-rank --store runs` trains the same cells without haste.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import itertools
import json
import multiprocessing
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError
from rankfall.store.claims import Claims
from rankfall.store.identity import identity, settings
from rankfall.store.lock import POLL, FileLock
from rankfall.store.results import export_results, import_results
from rankfall.store.store import Store
from rankfall.training.grid import cells_of, find_grid
from rankfall.training.kinds import Rows, Surroundings, TrainingCell, stack_key
from rankfall.training.options import Options
from rankfall.training.plan import Group, group_cells
from rankfall.training.text.budget import budget_note
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import Corpus, open_corpus
from rankfall.training.text.kind import within_budget
from rankfall.training.text.stack import TextStack
from rankfall.training.text.timing import FOLDER, device_turn
from rankfall.training.work import Watch, work_on

MEMORY = 60 << 30
"""Bytes that one stack may take on the GPU."""
GRACE = 20.0
"""Seconds after the allowance in which what was trained may still be audited and kept."""
LOOK = 2.0
"""Seconds between two looks for new results."""
TRIAL = 5
"""Steps that say how long the rest will take."""
MARGIN = 1.1
"""What looks at held-out text add to a run."""
SOLVING = 60.0
"""Seconds that it takes at least to solve for a time where each guess is compiled."""
TIME = "step_seconds"
NAMES = {"1c8683b2a7a1fb66": "prose", "dd07bf57026157d5": "code"}
"""What the corpora of the grid hold."""


class OutOfTimeError(Exception):
    """A stack cannot be trained in what is left of the allowance."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "--grid", nargs="+", default=["text-rank"], help="grids of language models, in order (default: text-rank)"
    )
    parser.add_argument("--store", type=Path, required=True, help="holds the corpora; runs go there")
    parser.add_argument("--out", type=Path, required=True, help="a folder for results, added to")
    parser.add_argument("--seconds", type=float, required=True, help="allowance, the first compilation included")
    parser.add_argument("--workers", type=int, default=4, help="processes that compile side by side")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: cuda)")
    parser.add_argument("--no-compile", dest="compile", action="store_false", default=None, help="train as it is")
    parser.add_argument("--results", type=Path, help="results to go on from: their cells are not trained again")
    options = parser.parse_args(arguments)
    end = time.time() + options.seconds
    jobs = [job for grid in options.grid for job in jobs_in_order(grid, options.device)]
    store = Store(options.store)
    try:
        for name in dict.fromkeys(cell.corpus for job in jobs for cell in job.cells if isinstance(cell, TextCell)):
            open_corpus(name, store.path)
    except RequestError as error:
        print(f"text_rank: {error}; scripts/corpora.py --store makes those of text-rank", file=sys.stderr)
        return 2
    if options.results is not None:
        import_results(store, options.results)
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(store, options.out, {run.id for run in store.runs()})
    context = multiprocessing.get_context("spawn")
    work = partial(_work, jobs, options.store, end, options.device, options.compile)
    workers = [context.Process(target=work, args=(number,)) for number in range(options.workers)]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers) and time.time() < end + GRACE:
            time.sleep(LOOK)
            report.update()
    finally:
        for worker in workers:
            # what still compiles has no time to train
            if worker.is_alive():
                worker.terminate()
                worker.join()
    report.update()
    known = [cell for job in jobs for cell in solved_before(job, store) or ()]
    print(f"{len(known) - len(store.missing(known))} of {sum(len(job.cells) for job in jobs)} models trained")
    return 0


@dataclass(frozen=True)
class Job:
    """Cells to train as one stack; under a time of a step, what all of them leave open is solved for first."""

    cells: Group
    step_seconds: float | None = None
    solve: str = "feed_forward"


def jobs_in_order(grid: str, device: str) -> list[Job]:
    """The stacks of a grid, table by table."""
    document = tomllib.loads(find_grid(grid).read_text(encoding="utf-8"))
    shared = {key: value for key, value in document.items() if key != "grid"}
    tables: list[Mapping[str, Any]] = document.get("grid", [{}])
    return [job for table in tables for job in _jobs({**shared, **table}, grid, device)]


def _jobs(table: Mapping[str, Any], grid: str, device: str) -> list[Job]:
    if TIME not in table:
        return [Job(group) for group in group_cells(cells_of(table, grid), memory=MEMORY, device=device)]
    times, solves = (_listed(table.get(key, Job.solve)) for key in (TIME, "solve"))
    cells = cells_of({key: value for key, value in table.items() if key not in (TIME, "solve")}, grid)
    found = []
    for seconds, solve in itertools.product(times, solves):
        by_shape: dict[Any, list[TrainingCell]] = {}
        for cell in cells:
            assert isinstance(cell, TextCell)
            cell = replace(cell, budget=budget_note(TIME, seconds, solve))
            by_shape.setdefault(stack_key(cell), []).append(cell)
        found += [Job(tuple(own), seconds, solve) for own in by_shape.values()]
    return found


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def solved_before(job: Job, store: Store) -> Group | None:
    """The cells of a job, with what is solved for as a run of the store has it; None when there is no such run."""
    if job.step_seconds is None:
        return job.cells
    free = (job.solve, "seed", "learning_rate")
    wanted = _without(settings(job.cells[0]), free)
    for run in store.runs():
        if _without(run.config, free) == wanted:
            return _solved_as(job, run.config[job.solve])
    return None


def _solved_as(job: Job, value: int) -> Group:
    changed: dict[str, Any] = {job.solve: value}
    return tuple(replace(cell, **changed) for cell in job.cells if isinstance(cell, TextCell))


def _without(values: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in names}


def solving_path(job: Job, folder: Path) -> Path:
    """The lock that is held while the shape of a job is solved for: the same for all seeds."""
    first = job.cells[0]
    assert isinstance(first, TextCell)
    return folder / FOLDER / f"{identity(replace(first, seed=0, learning_rate=1.0))}.lock"


def solve_job(job: Job, folder: Path, device: str, end: float) -> Group:
    """Measure steps until the shape takes its time; each guess only if the models could still be trained after it."""
    first = job.cells[0]
    assert isinstance(first, TextCell)
    assert job.step_seconds is not None
    training = MARGIN * first.steps * job.step_seconds

    def in_time(what: str, share: float) -> None:
        if time.time() + training > end:
            raise OutOfTimeError

    if device.startswith("cuda") and time.time() + SOLVING + training > end:
        raise OutOfTimeError
    around = Surroundings(store=lambda: folder, device=device, progress=in_time)
    cell = within_budget(first, TIME, job.step_seconds, job.solve, around)
    return _solved_as(job, getattr(cell, job.solve))


class TakingTurns:
    """A stack that is compiled before its turn, and audited after it."""

    def __init__(self, stack: TextStack, turn: FileLock, corpus: Corpus, end: float) -> None:
        self._stack, self._turn, self._corpus = stack, turn, corpus
        self._summaries: Rows | None = None
        stack.prepare()
        if not turn.take(until=end):
            raise OutOfTimeError
        seconds = self._trial()
        if time.time() + MARGIN * seconds * stack.cells[0].steps > end:
            raise OutOfTimeError

    def _trial(self) -> float:
        before = self._stack.snapshot()
        _wait(self._stack)
        start = time.perf_counter()
        self._stack.run_steps(TRIAL)
        _wait(self._stack)
        seconds = (time.perf_counter() - start) / TRIAL
        self._stack.rewind(before)
        return seconds

    @property
    def chunks_done(self) -> int:
        return self._stack.chunks_done

    @property
    def chunks_total(self) -> int:
        return self._stack.chunks_total

    def advance(self) -> Rows:
        return self._stack.advance()

    def state(self) -> dict[str, Any]:
        """Asked for once, at the end: the turn is over when the results are measured."""
        self._summaries = self._stack.summaries()
        self._turn.give()
        return self._stack.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        self._stack.restore(state)

    def weights(self, index: int) -> dict[str, Any]:
        return self._stack.weights(index)

    def summaries(self) -> Rows:
        """Each with the columns of its audit; an audit that fails takes nothing from the result."""
        rows = self._summaries or self._stack.summaries()
        return [{**row, **self._audit(place)} for place, row in enumerate(rows)]

    def _audit(self, place: int) -> dict[str, float | None]:
        from rankfall.models.trained.audited import audit_columns

        try:
            device = str(self._stack.device)
            return audit_columns(self._stack.cells[place], self._stack.weights(place), self._corpus, device)
        except Exception:
            traceback.print_exc()
            return {}


def _work(jobs: Sequence[Job], folder: Path, end: float, device: str, compile: bool | None, number: int) -> None:
    """Train what no other process is at, in order, while there is time."""
    store = Store(folder)
    options = Options(device=device, memory=MEMORY, compile=compile, checkpoint_seconds=1e9)
    watch = Watch(stop=lambda: time.time() >= end, note=lambda text: print(text, flush=True))
    failed = 0

    def build(turn: FileLock, cells: Sequence[TrainingCell], on: str, compiled: bool, tf32: bool) -> TakingTurns:
        own = [cell for cell in cells if isinstance(cell, TextCell)]
        begun = time.perf_counter()
        corpus = open_corpus(own[0].corpus, store.path)
        stack = TextStack(own, store.path, on, compiled, tf32)
        taking = TakingTurns(stack, turn, corpus, end)
        print(f"worker {number}: {own[0].label} x {len(own)} begins, {time.perf_counter() - begun:.0f} s", flush=True)
        return taking

    def attempt(job: Job, turn: FileLock, claims: Claims) -> bool:
        """Train a job unless another process solves for its shape: then False."""
        cells = solved_before(job, store)
        if cells is None:
            path = solving_path(job, folder)
            with contextlib.closing(FileLock(path)) as solving:
                if not solving.take(until=0.0):
                    return False
                begun = time.perf_counter()
                try:
                    cells = solve_job(job, folder, device, end)
                    told = f"has {job.solve} {getattr(cells[0], job.solve)}, {time.perf_counter() - begun:.0f} s"
                except RequestError as error:
                    told = f"is left out: {error}"
                if _is_first(path.with_suffix(".told"), end):
                    print(f"worker {number}: {job.cells[0].label} at {job.cells[0].budget} {told}", flush=True)
            if cells is None:
                return True
        for group in group_cells(cells, memory=MEMORY, device=device):
            try:
                work_on(group, store, claims, options, watch, partial(build, turn))
            finally:
                turn.give()
        return True

    waiting = list(jobs)
    with contextlib.closing(device_turn(folder)) as turn, Claims(store.claims_folder) as claims:
        while waiting:
            later = []
            for job in waiting:
                if time.time() >= end or failed > 1:
                    return
                try:
                    if not attempt(job, turn, claims):
                        later.append(job)
                except OutOfTimeError:
                    print(f"worker {number}: no time for {job.cells[0].label} x {len(job.cells)}", flush=True)
                except Exception:
                    failed += 1
                    traceback.print_exc()
            waiting = later
            if waiting:
                time.sleep(POLL)


def _is_first(path: Path, end: float) -> bool:
    """Whether none of the workers that share an end was here before; the caller holds the lock on it."""
    before = path.read_text() if path.exists() else None
    path.write_text(repr(end))
    return before != repr(end)


def _wait(stack: TextStack) -> None:
    if stack.device.type == "cuda":
        import torch

        torch.cuda.synchronize(stack.device)


class Report:
    """Results so far, written whenever there are new ones; `told` are known already."""

    def __init__(self, store: Store, out: Path, told: set[str]) -> None:
        self._store, self._out, self._begun = store, out, time.time()
        self._told = set(told)

    def update(self) -> None:
        """Write and print what is new."""
        fresh = [run for run in self._store.runs() if run.id not in self._told]
        if not fresh:
            return
        self._told |= {run.id for run in fresh}
        export_results(fresh, self._out)
        self._add_histories(fresh)
        names = {run.config["corpus"] for run in fresh}
        self._write_corpora(names)
        for run in fresh:
            row = run.summary()
            print(
                f"{time.time() - self._begun:.0f} s: {NAMES.get(row['corpus'], row['corpus'])} d{row['width']} "
                f"H{row['heads']} r{row['rank']} u{row['value_rank']} f{row['feed_forward']} s{row['seed']} "
                f"{row['status']}: {row['nats_per_byte']:.4f} nats per byte, {row['seconds']:.1f} s, "
                f"tokens' rank {row.get('token_rank_last')}, audit {row.get('audit_seconds')} s",
                flush=True,
            )

    def _add_histories(self, runs: Sequence[Any]) -> None:
        path = self._out / "histories.csv"
        new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if new:
                writer.writerow(("id", "step", "loss", "fresh", "learning_rate"))
            for run in runs:
                for row in _history(run):
                    writer.writerow((run.id, row["step"], row["loss"], row["fresh"], row["learning_rate"]))

    def _write_corpora(self, names: set[str]) -> None:
        path = self._out / "corpora.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        for name in names:
            known[name] = {"name": NAMES.get(name, name), **asdict(open_corpus(name, self._store.path).about)}
        path.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def _history(run: Any) -> Iterator[Mapping[str, Any]]:
    yield from run.history().to_pylist()


if __name__ == "__main__":
    sys.exit(main())
