"""Results that are committed: summaries without weights, with commit, hardware and date, which a store can take in.

results/<theme>/<hardware>-<date>.csv     one line per cell: id, status, configuration, results, environment
results/<theme>/<hardware>-<date>.json    the environments that the lines point to, and what the columns are
"""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import rankfall
from rankfall.errors import RequestError, require
from rankfall.sources import read_bounded
from rankfall.store.damage import read_object
from rankfall.store.files import from_csv, storage_errors, to_csv, write_bytes
from rankfall.store.identity import SCHEMA, canonical, identity
from rankfall.store.run import Run
from rankfall.store.store import Store

OPTIONAL = "optional"
"""Settings that only some lines of a page have: empty where a line does not."""


def export_results(
    runs: Iterable[Run], folder: Path, beside: Callable[[Run], Mapping[str, Any]] = lambda run: {}
) -> list[Path]:
    """Write one pair of files per hardware and date, and return their paths.

    `beside` gives what a line holds besides a run's own summary, such as the columns of its audit. A pair that is
    already there is added to: cells that are new join it, cells that it holds stay as they are. Cells of another
    kind, of which a column says something else, go into a pair of their own, `<hardware>-<date>-2`.
    """
    pages: dict[str, list[_Page]] = {}
    for run in runs:
        line, environment = {**run.summary(), **beside(run)}, run.environment
        known = pages.setdefault(_name(environment), [])
        _page_for(line, run.config, folder / _name(environment), known).add(line, run.config, environment)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return [path for _, known in sorted(pages.items()) for page in known for path in page.write()]


def _page_for(line: Mapping[str, Any], config: Mapping[str, Any], base: Path, known: list[_Page]) -> _Page:
    """The page that holds a line, else the first that can take it: `base`, then `base-2` and so on."""
    for number in itertools.count(1):
        if number > len(known):
            known.append(_Page(base if number == 1 else base.with_name(f"{base.name}-{number}")))
        if known[number - 1].takes(line, config):
            return known[number - 1]
    raise AssertionError("a new page takes every line")


class _Page:
    """A pair of files while lines are added to it. In all its lines a column is a setting, or in all a result: which
    of both it is decides a line's identity, and cells of different kinds differ in it (the number of heads)."""

    def __init__(self, base: Path) -> None:
        self.csv, self.json = (base.with_name(f"{base.name}.{ending}") for ending in ("csv", "json"))
        there = self.csv.exists() or self.json.exists()
        self.rows, before = _read_page(self.csv) if there else ([], {})
        self.environments: list[dict[str, Any]] = before.get("environments", [])
        config, optional = set(before.get("config", ())), set(before.get(OPTIONAL, ()))
        self.kinds = [config - optional, config] if there else []
        self.settings = config
        self.results = {key for row in self.rows for key in row} - config
        self.held = {row["id"] for row in self.rows}

    def takes(self, line: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
        clash = self.settings & (line.keys() - config.keys()) | self.results & config.keys()
        return line["id"] in self.held or not clash

    def add(self, line: Mapping[str, Any], config: Mapping[str, Any], environment: dict[str, Any]) -> None:
        if line["id"] in self.held:
            return
        if environment not in self.environments:
            self.environments.append(environment)
        self.rows.append({**line, "environment": self.environments.index(environment)})
        self.kinds.append(set(config))
        self.settings |= config.keys()
        self.results |= line.keys() - config.keys()
        self.held.add(line["id"])

    def write(self) -> list[Path]:
        document = {"schema": SCHEMA, "config": sorted(self.settings), "environments": self.environments}
        if optional := [key for key in sorted(self.settings) if not all(key in keys for keys in self.kinds)]:
            document[OPTIONAL] = optional
        write_bytes(self.csv, to_csv(sorted(self.rows, key=lambda row: str(row["id"]))).encode())
        write_bytes(self.json, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
        return [self.csv, self.json]


def import_results(store: Store, path: Path) -> list[str]:
    """Take committed results into a store as complete runs without history and weights; return the new names.

    `path` is one CSV file or a folder of them. Each line must hash to the identity that it claims.
    """
    added = []
    for page in _pages(path):
        for config, row, environment in _checked(page):
            if not store.has(row["id"]):
                summary = {key: value for key, value in row.items() if key not in ("id", "environment")}
                store.write(config, summary=summary, environment=environment, source="imported")
                added.append(row["id"])
    return added


def read_results(path: Path) -> list[dict[str, Any]]:
    """The rows of one CSV file of results or of a folder of them, each checked, no cell twice."""
    return list({row["id"]: row for page in _pages(path) for _, row, _ in _checked(page)}.values())


def _pages(path: Path) -> list[Path]:
    require(path.exists(), required=f"results at {path}", got="no such file or folder", remedy="check the path")
    pages = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
    pages = [page for page in pages if page.with_suffix(".json").exists()]
    require(
        bool(pages),
        required=f"results at {path}: a CSV file and a JSON file of the same name",
        got="none",
        remedy="`rankfall runs --export-results FOLDER` writes both",
    )
    return pages


def _checked(page: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """Configuration, row and environment of each line, whose id must be the hash of the first."""
    lines, document = _read_page(page)
    keys, environments, optional = document["config"], document["environments"], set(document.get(OPTIONAL, ()))
    for line in lines:
        row = {key: value for key, value in line.items() if value is not None or key not in optional}
        config = {key: row[key] for key in keys if key in row}
        require(
            identity(config) == row["id"],
            required=f"each line of {page} to hash to its id",
            got=f"{row['id']} for a configuration whose hash is {identity(config)}",
            remedy="the line was edited, or belongs to another version: restore it or remove it",
        )
        yield config, row, environments[line["environment"]]


def _read_page(page: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The lines of a page and the document beside it, checked; an error that names them where they are damaged."""
    try:
        document = read_object(page.with_suffix(".json"))
        keys, environments = document["config"], document["environments"]
        if not all(isinstance(key, str) for key in [*keys, *document.get(OPTIONAL, ())]):
            raise TypeError("names that are no text")
        if not (isinstance(environments, list) and all(isinstance(one, dict) for one in environments)):
            raise TypeError("environments that are no list of objects")
        text = read_bounded(page).decode("utf-8")
        if not {"id", "environment"} <= set(next(csv.reader(text.splitlines()), ())):
            raise ValueError("no columns id and environment")
        rows = from_csv(text)
        for row in rows:
            if not isinstance(row["id"], str) or None in row or environments[row["environment"]] is None:
                raise ValueError("a line with other columns than the first")
            canonical({key: row[key] for key in keys if key in row})
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, csv.Error) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(
            required=f"{page} and its JSON file as `rankfall runs --export-results` writes them",
            got=f"{type(error).__name__}: {error}",
            remedy="restore both from version control",
        ) from None
    return rows, document


def committed_summaries() -> dict[str, Mapping[str, Any]]:
    """Summaries that ship with the project, each with what produced it under `environment`."""
    package = Path(rankfall.__file__).parent
    known: dict[str, Mapping[str, Any]] = {}
    for folder in (package / "results", package.parents[1] / "results"):
        for page in sorted(folder.rglob("*.csv")):
            notes = page.with_suffix(".json")
            if notes.exists():
                rows, document = _read_page(page)
                for row in rows:
                    known[row["id"]] = {**row, "environment": document["environments"][row["environment"]]}
    return known


def _name(environment: dict[str, Any]) -> str:
    """Hardware and date as a file name: the GPU where there is one, else the processor."""
    hardware = str(environment.get("hardware", "unknown")).split(", ")
    machine = hardware[-1] if len(hardware) > 2 else hardware[0]
    words = [word for word in re.findall(r"[a-z0-9]+", machine.lower()) if word not in ("r", "tm", "cpu", "nvidia")]
    return "-".join([*words, str(environment.get("date", "undated"))])
