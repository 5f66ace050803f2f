"""The experiment on head rank in language models, within an allowance of time: the most telling models first.

    python scripts/corpora.py corpora --store runs
    python scripts/text_rank.py --store runs --out results/text-rank --seconds 600

Trains the cells of a grid in the order of its tables and audits each model. Every shape is compiled anew, so several
processes compile side by side while one at a time trains: training has the GPU for itself, and `seconds` in a row are
the model's own. After every model the results are written again, so that a kill loses what is being trained and
nothing else. `rankfall sweep text-rank --store runs` trains the same cells without haste.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import fcntl
import json
import multiprocessing
import signal
import sys
import time
import tomllib
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from rankfall.errors import RequestError
from rankfall.store.claims import Claims
from rankfall.store.results import export_results, import_results
from rankfall.store.store import Store
from rankfall.training.grid import cells_of, find_grid
from rankfall.training.kinds import Rows, TrainingCell
from rankfall.training.options import Options
from rankfall.training.plan import Group, group_cells
from rankfall.training.text.cell import TextCell
from rankfall.training.text.corpus import Corpus, open_corpus
from rankfall.training.text.stack import TextStack
from rankfall.training.work import Watch, work_on

MEMORY = 60 << 30
"""Bytes that one stack may take on the GPU."""
POLL = 0.05
"""Seconds between two looks at whether the GPU is free."""
GRACE = 20.0
"""Seconds after the allowance in which what was trained may still be audited and kept."""
LOOK = 2.0
"""Seconds between two looks for new results."""
TRIAL = 5
"""Steps that say how long the rest will take."""
MARGIN = 1.1
"""What looks at held-out text add to a run."""
NAMES = {"1c8683b2a7a1fb66": "prose", "dd07bf57026157d5": "code"}
"""What the corpora of the grid hold."""


class OutOfTimeError(Exception):
    """A stack cannot be trained in what is left of the allowance."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--grid", default="text-rank", help="a grid of language models (default: text-rank)")
    parser.add_argument("--store", type=Path, required=True, help="holds the corpora; runs go there")
    parser.add_argument("--out", type=Path, required=True, help="a folder for results, added to")
    parser.add_argument("--seconds", type=float, required=True, help="allowance, the first compilation included")
    parser.add_argument("--workers", type=int, default=4, help="processes that compile side by side")
    parser.add_argument("--device", default="cuda", help="cuda or cpu (default: cuda)")
    parser.add_argument("--no-compile", dest="compile", action="store_false", default=None, help="train as it is")
    parser.add_argument("--results", type=Path, help="results to go on from: their cells are not trained again")
    options = parser.parse_args(arguments)
    end = time.time() + options.seconds
    groups = groups_in_order(options.grid, options.device)
    store = Store(options.store)
    try:
        for name in dict.fromkeys(cell.corpus for group in groups for cell in group if isinstance(cell, TextCell)):
            open_corpus(name, store.path)
    except RequestError as error:
        print(f"text_rank: {error}; scripts/corpora.py --store makes those of text-rank", file=sys.stderr)
        return 2
    if options.results is not None:
        import_results(store, options.results)
    options.out.mkdir(parents=True, exist_ok=True)
    report = Report(store, options.out, {run.id for run in store.runs()})
    context = multiprocessing.get_context("spawn")
    work = partial(_work, groups, options.store, end, options.device, options.compile)
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
    cells = [cell for group in groups for cell in group]
    print(f"{len(cells) - len(store.missing(cells))} of {len(cells)} models trained")
    return 0


def groups_in_order(grid: str, device: str) -> list[Group]:
    """The stacks of a grid, table by table."""
    document = tomllib.loads(find_grid(grid).read_text(encoding="utf-8"))
    shared = {key: value for key, value in document.items() if key != "grid"}
    tables: list[Mapping[str, Any]] = document.get("grid", [{}])
    return [
        group
        for table in tables
        for group in group_cells(cells_of({**shared, **table}, grid), memory=MEMORY, device=device)
    ]


class Turn:
    """The right to train: one process at a time has it."""

    def __init__(self, path: Path, end: float) -> None:
        self._file: TextIO = path.open("w")
        self._end = end

    def take(self) -> None:
        """Wait for it, at most until the end."""
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            if time.time() >= self._end:
                raise OutOfTimeError
            time.sleep(POLL)

    def give(self) -> None:
        """Let the next have it; without effect for one who does not have it."""
        fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give it up for good."""
        self._file.close()


class TakingTurns:
    """A stack that is compiled before its turn, and audited after it."""

    def __init__(self, stack: TextStack, turn: Turn, corpus: Corpus, end: float) -> None:
        self._stack, self._turn, self._corpus = stack, turn, corpus
        self._summaries: Rows | None = None
        stack.prepare()
        turn.take()
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
        from rankfall.models.trained_text import audit_columns

        try:
            device = str(self._stack.device)
            return audit_columns(self._stack.cells[place], self._stack.weights(place), self._corpus, device)
        except Exception:
            traceback.print_exc()
            return {}


def _work(groups: Sequence[Group], folder: Path, end: float, device: str, compile: bool | None, number: int) -> None:
    """Train what no other process is at, in order, while there is time."""
    store = Store(folder)
    options = Options(device=device, memory=MEMORY, compile=compile, checkpoint_seconds=1e9)
    watch = Watch(stop=lambda: time.time() >= end, note=lambda text: print(text, flush=True))
    failed = 0

    def build(turn: Turn, cells: Sequence[TrainingCell], on: str, compiled: bool, tf32: bool) -> TakingTurns:
        own = [cell for cell in cells if isinstance(cell, TextCell)]
        begun = time.perf_counter()
        corpus = open_corpus(own[0].corpus, store.path)
        stack = TextStack(own, store.path, on, compiled, tf32)
        taking = TakingTurns(stack, turn, corpus, end)
        print(f"worker {number}: {own[0].label} x {len(own)} begins, {time.perf_counter() - begun:.0f} s", flush=True)
        return taking

    with contextlib.closing(Turn(folder / "turn.lock", end)) as turn, Claims(store.claims_folder) as claims:
        for group in groups:
            if time.time() >= end or failed > 1:
                return
            try:
                work_on(group, store, claims, options, watch, partial(build, turn))
            except OutOfTimeError:
                print(f"worker {number}: no time for {group[0].label} x {len(group)}", flush=True)
            except Exception:
                failed += 1
                traceback.print_exc()
            finally:
                turn.give()


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
