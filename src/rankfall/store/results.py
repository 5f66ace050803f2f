"""Results that are committed: summaries without weights, with commit, hardware and date, which a store can take in.

results/<theme>/<hardware>-<date>.csv     one line per cell: id, status, configuration, results, environment
results/<theme>/<hardware>-<date>.json    the environments that the lines point to, and what the columns are
"""

from __future__ import annotations

import csv
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
    already there is added to: cells that are new join it, cells that it holds stay as they are.
    """
    groups: dict[str, list[tuple[dict[str, Any], dict[str, Any], list[str]]]] = {}
    for run in runs:
        environment = run.environment
        line = {**run.summary(), **beside(run)}
        groups.setdefault(_name(environment), []).append((line, environment, sorted(run.config)))
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, members in sorted(groups.items()):
        page, notes = folder / f"{name}.csv", folder / f"{name}.json"
        rows, before = _read_page(page) if page.exists() or notes.exists() else ([], {})
        environments = before.get("environments", [])
        held = {row["id"] for row in rows}
        kinds: list[set[str]] = [set(keys) for summary, _, keys in members if summary["id"] not in held]
        if "config" in before:
            kinds += [set(before["config"]) - set(before.get(OPTIONAL, ())), set(before["config"])]
        config = sorted({key for keys in kinds for key in keys})
        for summary, environment, _ in members:
            if summary["id"] not in held:
                if environment not in environments:
                    environments.append(environment)
                rows.append({**summary, "environment": environments.index(environment)})
        document = {"schema": SCHEMA, "config": config, "environments": environments}
        if optional := [key for key in config if not all(key in keys for keys in kinds)]:
            document[OPTIONAL] = optional
        write_bytes(page, to_csv(sorted(rows, key=lambda row: str(row["id"]))).encode())
        write_bytes(notes, (json.dumps(document, indent=1, sort_keys=True) + "\n").encode())
        paths += [page, notes]
    return paths


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
