"""Run random inputs: `python -m fuzz`, some kinds of them, so many, from a seed; or the corpus of past failures."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from fuzz.plan import AT_ONCE, SHARES, Inputs, Part, corpus, parts
from fuzz.templates import build, run_folders
from fuzz.warm import warm
from fuzz.workers import Outcome, outcomes

SECONDS_BETWEEN_NEWS = 10


def main() -> int:
    """Print a line per failure and a summary; exit status 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=2000, help="inputs in all, beside the corpus")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(SHARES), help="one kind only")
    parser.add_argument("--only", type=int, help="this number of a kind alone")
    parser.add_argument("--first", type=int, default=0, help="the number to begin with")
    parser.add_argument("--no-corpus", action="store_true")
    parser.add_argument("--failures", type=Path, help="write failing cases into this file, one JSON object a line")
    parser.add_argument("--minutes", type=float, help="begin nothing after so many minutes")
    parser.add_argument("--workers", type=int, default=1, help="inputs at the same time")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-templates-") as folder:
        Path(folder).chmod(0o755)
        return _run(given, Path(folder) / "made")


@dataclass
class Tally:
    """What came of the inputs so far."""

    seed: int
    failures: Path | None
    ran: Counter[str]
    statuses: Counter[str]
    seconds: Counter[str]
    failed: int = 0

    def add(self, kind: str, one: Outcome) -> None:
        """Count an outcome; print and keep a failure."""
        self.ran[kind] += 1
        self.statuses[f"{kind} {one.verdict.status}"] += 1
        self.seconds[kind] += one.seconds
        if one.verdict.wrong is None:
            return
        self.failed += 1
        where = f" at {one.verdict.where}" if one.verdict.where else ""
        print(f"{kind} {one.number}: {one.verdict.wrong}{where}", flush=True)
        if self.failures is not None:
            line = {**one.case.record(), "wrong": one.verdict.wrong, "where": one.verdict.where}
            line |= {"kind": kind, "seed": self.seed, "number": one.number}
            with self.failures.open("a") as file:
                file.write(json.dumps(line) + "\n")

    def summary(self) -> str:
        """One JSON object."""
        told = {"seed": self.seed, "inputs": dict(self.ran), "statuses": dict(sorted(self.statuses.items()))}
        seconds = {kind: round(taken, 1) for kind, taken in self.seconds.items()}
        return json.dumps({**told, "seconds": seconds, "failed": self.failed})


def _run(given: argparse.Namespace, made: Path) -> int:
    warm(many=given.count > AT_ONCE)
    build(made)
    kept = corpus() if not given.no_corpus and given.only is None else ()
    inputs = Inputs(given.seed, run_folders(made / "store"), kept)
    if given.only is not None:
        planned = [Part(kind, range(given.only, given.only + 1)) for kind in ([given.kind] if given.kind else SHARES)]
    else:
        planned = parts(given.count, given.first, given.kind, len(kept))
    tally = Tally(given.seed, given.failures, Counter(), Counter(), Counter())
    until = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
    told = time.monotonic()
    for kind, found in _done(partial(_judged, inputs, made, until), planned, given.workers):
        for one in found:
            tally.add(kind, one)
        if time.monotonic() - told > SECONDS_BETWEEN_NEWS:
            told = time.monotonic()
            print(f"{tally.ran.total():,} inputs, {tally.failed} failed", file=sys.stderr, flush=True)
    print(tally.summary())
    return 1 if tally.failed else 0


def _judged(inputs: Inputs, made: Path, until: float, part: Part) -> list[Outcome]:
    found: list[Outcome] = []
    if time.monotonic() < until:
        for one in outcomes(partial(inputs.case, part.kind), part.numbers, made):
            found.append(one)
            if time.monotonic() > until:
                break
    return found


def _done(job: partial[list[Outcome]], planned: list[Part], workers: int) -> Iterator[tuple[str, list[Outcome]]]:
    """Parts with their outcomes as they come; forked, so that no worker imports anything again."""
    if workers == 1:
        yield from ((part.kind, job(part)) for part in planned)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("fork")) as pool:
        asked = {pool.submit(job, part): part.kind for part in planned}
        for future in as_completed(asked):
            yield asked[future], future.result()


if __name__ == "__main__":
    sys.exit(main())
