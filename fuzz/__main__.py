"""Run random inputs: `python -m fuzz`, some kinds of them, so many, from a seed; or the corpus of past failures."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus.jsonl")
SHARES = {"commands": 0.6, "grids": 0.25, "stores": 0.1, "models": 0.05}
NOT_IMPORTED = ("rankfall.__main__", "rankfall.explorer.page", "rankfall.training.kernels")
"""What runs when imported, or needs the compiler of a GPU."""
AT_ONCE = 1_000
"""Inputs of one child, after which a fresh one begins."""


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
    parser.add_argument("--minutes", type=float, help="stop after so many minutes")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fuzz-templates-") as folder:
        Path(folder).chmod(0o755)
        return _run(given, Path(folder))


def _run(given: argparse.Namespace, folder: Path) -> int:
    from fuzz.templates import build
    from fuzz.workers import outcomes

    _warm()
    build(folder / "made")
    until = time.monotonic() + 60 * given.minutes if given.minutes else float("inf")
    failed, ran, statuses = 0, Counter[str](), Counter[str]()
    for kind, cases, numbers in _plan(given, folder / "made"):
        for start in range(0, len(numbers), AT_ONCE):
            for one in outcomes(cases, numbers[start : start + AT_ONCE], folder / "made"):
                ran[kind] += 1
                statuses[f"{kind} {one.verdict.status}"] += 1
                if one.verdict.wrong is not None:
                    failed += 1
                    where = f" at {one.verdict.where}" if one.verdict.where else ""
                    print(f"{kind} {one.number}: {one.verdict.wrong}{where}", flush=True)
                    if given.failures is not None:
                        line = {**one.case.record(), "wrong": one.verdict.wrong, "where": one.verdict.where}
                        line |= {"kind": kind, "seed": given.seed, "number": one.number}
                        with given.failures.open("a") as file:
                            file.write(json.dumps(line) + "\n")
                if time.monotonic() > until:
                    break
            if time.monotonic() > until:
                break
    print(
        json.dumps(
            {"seed": given.seed, "inputs": dict(ran), "statuses": dict(sorted(statuses.items())), "failed": failed}
        )
    )
    return 1 if failed else 0


def _plan(given: argparse.Namespace, made: Path) -> list[tuple[str, Callable[[int], object], range]]:
    from fuzz import commands, grids, models, stores
    from fuzz.case import Case
    from fuzz.templates import run_folders

    makers = {
        "commands": commands.command,
        "grids": grids.grid,
        "models": models.model,
        "stores": partial(stores.store, runs=run_folders(made / "store")),
    }

    def numbered(kind: str, number: int) -> Case:
        return makers[kind](random.Random(f"{kind} {given.seed} {number}"))

    planned = []
    if not given.no_corpus and given.only is None and CORPUS.exists():
        kept = [Case.of(json.loads(line)) for line in CORPUS.read_text().splitlines()]
        planned.append(("corpus", kept.__getitem__, range(len(kept))))
    for kind, share in SHARES.items():
        if given.kind in (None, kind):
            count = given.count if given.kind else round(given.count * share)
            numbers = (
                range(given.first, given.first + count) if given.only is None else range(given.only, given.only + 1)
            )
            planned.append((kind, partial(numbered, kind), numbers))
    return planned


def _warm() -> None:
    """Import once what children would each import again; from then on a change of the source changes nothing."""
    import duckdb  # noqa: F401
    import matplotlib.pyplot  # noqa: F401
    import torch
    import transformers

    import rankfall

    for found in pkgutil.walk_packages(rankfall.__path__, "rankfall."):
        if not found.name.startswith(NOT_IMPORTED):
            importlib.import_module(found.name)
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()


if __name__ == "__main__":
    sys.exit(main())
