"""Results that are committed: summaries without weights, with commit, hardware and date, which a store can take in.

results/<theme>/<hardware>-<date>.csv     one line per cell: id, status, configuration, results, environment
results/<theme>/<hardware>-<date>.json    the environments that the lines point to, and what the columns are
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import rankfall
from rankfall.errors import RequestError, require
from rankfall.store.files import from_csv, read_bounded, read_json, storage_errors, to_csv, write_bytes
from rankfall.store.identity import SCHEMA, identity
from rankfall.store.run import Run
from rankfall.store.store import Store

OPTIONAL = "optional"
"""Settings that only some lines of a page have: empty where a line does not."""


def export_results(runs: Iterable[Run], folder: Path) -> list[Path]:
    """Write one pair of files per hardware and date, and return their paths.

    A pair that is already there is added to: cells that are new join it, cells that it holds stay as they are.
    """
    groups: dict[str, list[tuple[dict[str, Any], dict[str, Any], list[str]]]] = {}
    for run in runs:
        environment = run.environment
        groups.setdefault(_name(environment), []).append((run.summary(), environment, sorted(run.config)))
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, members in sorted(groups.items()):
        page, notes = folder / f"{name}.csv", folder / f"{name}.json"
        rows = from_csv(page.read_text()) if page.exists() else []
        before: dict[str, Any] = json.loads(notes.read_text()) if notes.exists() else {}
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
    require(path.exists(), required=f"results at {path}", got="no such file or folder", remedy="check the path")
    pages = sorted(path.rglob("*.csv")) if path.is_dir() else [path]
    pages = [page for page in pages if page.with_suffix(".json").exists()]
    require(
        bool(pages),
        required=f"results at {path}: a CSV file and a JSON file of the same name",
        got="none",
        remedy="`rankfall runs --export-results FOLDER` writes both",
    )
    return [id for page in pages for id in _import_page(store, page)]


def _import_page(store: Store, page: Path) -> list[str]:
    try:
        document = read_json(page.with_suffix(".json"))
        keys, environments = list(document["config"]), list(document["environments"])
        optional = set(document.get(OPTIONAL, ()))
        rows = [(row, environments[row["environment"]]) for row in from_csv(read_bounded(page).decode())]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise RequestError(
            required=f"{page} and its JSON file as `rankfall runs --export-results` writes them",
            got=f"{type(error).__name__}: {error}",
            remedy="restore both from version control",
        ) from None
    added = []
    for line, environment in rows:
        row = {key: value for key, value in line.items() if value is not None or key not in optional}
        config = {key: row[key] for key in keys if key in row}
        require(
            identity(config) == row["id"],
            required=f"each line of {page} to hash to its id",
            got=f"{row['id']} for a configuration whose hash is {identity(config)}",
            remedy="the line was edited, or belongs to another version: restore it or remove it",
        )
        if not store.has(row["id"]):
            summary = {key: value for key, value in row.items() if key not in ("id", "environment")}
            store.write(config, summary=summary, environment=environment, source="imported")
            added.append(row["id"])
    return added


def committed_summaries() -> dict[str, Mapping[str, Any]]:
    """Summaries that ship with the project, each with what produced it under `environment`."""
    package = Path(rankfall.__file__).parent
    known: dict[str, Mapping[str, Any]] = {}
    for folder in (package / "results", package.parents[1] / "results"):
        for page in sorted(folder.rglob("*.csv")):
            notes = page.with_suffix(".json")
            if notes.exists():
                environments = json.loads(notes.read_text())["environments"]
                for row in from_csv(page.read_text()):
                    known[row["id"]] = {**row, "environment": environments[row["environment"]]}
    return known


def _name(environment: dict[str, Any]) -> str:
    """Hardware and date as a file name: the GPU where there is one, else the processor."""
    hardware = str(environment.get("hardware", "unknown")).split(", ")
    machine = hardware[-1] if len(hardware) > 2 else hardware[0]
    words = [word for word in re.findall(r"[a-z0-9]+", machine.lower()) if word not in ("r", "tm", "cpu", "nvidia")]
    return "-".join([*words, str(environment.get("date", "undated"))])
