"""Check and audit every architecture of the installed library on small random models and write the table.

    python scripts/architectures.py [--only TYPE ... | --most-used] [--limit SECONDS] [--out FOLDER]

Each type runs in a process of its own (forked, so that the libraries are imported once), ended after its limit.
Writes architectures.csv, which the package ships and the documentation shows; with --only or --most-used,
those rows anew.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import logging
import multiprocessing
import re
import sys
import warnings
from collections import Counter
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import transformers

from rankfall.errors import RequestError
from rankfall.models.architectures.coverage import (
    PARTS,
    Checked,
    check_architecture,
    installed_architectures,
    known_type,
    most_used,
)

PACKAGED = Path(__file__).parents[1] / "src/rankfall/models/architectures/architectures.csv"
COLUMNS = ("model_type", "reach", "outcome", "expected", "calls", *PARTS, "note", "reasons", "transformers", "date")


def checked_in_child(model_type: str, seconds: float) -> Checked:
    context = multiprocessing.get_context("fork")
    reader, writer = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(model_type, writer))
    child.start()
    writer.close()
    try:
        if not reader.poll(seconds):
            return Checked(model_type, "not run", note=f"more than {seconds:.0f} s")
        return reader.recv()
    except EOFError:
        return Checked(model_type, "not run", note="the process died")
    finally:
        child.kill()
        child.join()


def _child(model_type: str, writer: Any) -> None:
    writer.send(check_architecture(model_type))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", metavar="TYPE")
    parser.add_argument("--most-used", action="store_true")
    parser.add_argument("--limit", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    stamp = {
        "transformers": metadata.version("transformers"),
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d"),
    }
    reach = installed_architectures()
    try:
        only = list(most_used()) if options.most_used else [known_type(name) for name in options.only or ()]
    except RequestError as error:
        parser.error(str(error))
    chosen = [name for name in reach if not only or name in only]
    # In this process, so that the children find everything that all architectures need already imported.
    check_architecture("bert")
    # Those that the interface reaches first: what matters most is known first.
    chosen.sort(key=lambda name: (reach[name] != "interface", name))
    table = options.out / "architectures.csv" if options.out else PACKAGED
    rows = {row["model_type"]: row for row in _existing(table)} if only else {}
    for number, name in enumerate(chosen, 1):
        checked = checked_in_child(name, options.limit)
        told = {
            key: _without_paths(value) if isinstance(value, str) else value for key, value in asdict(checked).items()
        }
        rows[name] = {"reach": reach[name], **told, **stamp}
        grades = " ".join(f"{part} {getattr(checked, part)}" for part in PARTS)
        print(f"{number}/{len(chosen)} {name}: {checked.outcome}; {grades}; {checked.reasons}", file=sys.stderr)
        write([rows[name] for name in sorted(rows)], table)
    print(Counter(row["outcome"] for row in rows.values()))
    for label, names in (("all", list(rows)), ("most used", [name for name in most_used() if name in rows])):
        whole = sum(all(rows[name][part] == "exact" for part in PARTS) for name in names)
        print(f"{label}: {whole} of {len(names)} are complete")


def _without_paths(text: str) -> str:
    """Where this machine keeps its libraries is nobody's business, and differs on the next one."""
    return re.sub(r"(?<![\w.])(?:/[\w.+-]+){2,}", "...", text)


def _existing(table: Path) -> list[dict[str, Any]]:
    if not table.exists():
        return []
    with table.open(newline="") as file:
        return list(csv.DictReader(file))


def write(rows: list[dict[str, Any]], table: Path) -> None:
    table.parent.mkdir(parents=True, exist_ok=True)
    with table.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    main()
