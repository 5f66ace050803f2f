"""The store: a folder of complete runs, each named by its configuration. Half-written runs never count.

<store>/store.json                  which version of the layout this is
<store>/<id>/                       config.json, summary.parquet, history.parquet, weights.safetensors,
                                    environment.json, and manifest.json, written last
<store>/.claims/                    who works on what at this moment
<store>/.checkpoints/               unfinished stacks
<store>/.partial/                   runs being written; renamed into place when they are whole
<store>/.damaged/                   runs set aside because a file no longer matched its manifest
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall.errors import RequestError, require
from rankfall.store.files import Record, flush, read_json, storage_errors, write_bytes, write_records, write_tensors
from rankfall.store.identity import identity, settings
from rankfall.store.run import (
    CONFIG,
    ENVIRONMENT,
    HISTORY,
    MANIFEST,
    SUMMARY,
    WEIGHTS,
    DamagedRunError,
    Manifest,
    Run,
    read_manifest,
    seal,
)

if TYPE_CHECKING:
    from torch import Tensor

VERSION = 1
MARK = "store.json"
Config = TypeVar("Config")


class Store:
    """A folder of runs. `create=False` refuses a folder that does not exist, for those who only read."""

    def __init__(self, path: Path | str, *, create: bool = True) -> None:
        self.path = Path(path)
        mark = self.path / MARK
        if not mark.exists():
            _require_new(self.path, create)
            with storage_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            write_bytes(mark, (json.dumps({"format": "rankfall store", "version": VERSION}) + "\n").encode())
        _require_version(mark)

    @property
    def claims_folder(self) -> Path:
        return self.path / ".claims"

    @property
    def checkpoints_folder(self) -> Path:
        return self.path / ".checkpoints"

    @property
    def partial_folder(self) -> Path:
        return self.path / ".partial"

    def ids(self) -> list[str]:
        """The complete runs, in a fixed order."""
        return sorted(folder.name for folder in self._folders() if read_manifest(folder) is not None)

    def runs(self) -> Iterator[Run]:
        """Every complete run."""
        for folder in sorted(self._folders()):
            manifest = read_manifest(folder)
            if manifest is not None:
                yield Run(folder, manifest)

    def find(self, id: str) -> Run | None:
        """The complete run of that name, or None."""
        folder = self.path / id
        manifest = read_manifest(folder)
        return None if manifest is None else Run(folder, manifest)

    def run(self, config: Any) -> Run:
        """The complete run of a configuration."""
        found = self.find(identity(config))
        if found is None:
            raise RequestError(
                required=f"a finished run {identity(config)} in {self.path}",
                got="none",
                remedy="`rankfall sweep` trains the cells of a grid",
            )
        return found

    def has(self, id: str, parts: Sequence[str] = (SUMMARY,)) -> bool:
        """Whether the run is complete and holds these files. A damaged run is an error, not an absence."""
        found = self.find(id)
        if found is None or not set(parts) <= set(found.manifest.names):
            return False
        found.check()
        return True

    def missing(self, configs: Iterable[Config], parts: Sequence[str] = (SUMMARY,)) -> list[Config]:
        """The configurations that are still to be run, in their order."""
        return [config for config in configs if not self.has(identity(config), parts)]

    def write(
        self,
        config: Any,
        *,
        summary: Record,
        environment: Mapping[str, Any],
        history: Sequence[Record] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        source: str = "trained",
    ) -> Run:
        """Write a run: into a folder of its own, the manifest last, then the folder renamed into place.

        A complete run that is already there stays, unless the new one holds files that the old one lacks.
        """
        id, plain = identity(config), settings(config)
        partial = self.partial_folder / f"{id}.{secrets.token_hex(4)}"
        with storage_errors(partial):
            partial.mkdir(parents=True)
        try:
            _write_json(partial / CONFIG, plain)
            _write_json(partial / ENVIRONMENT, environment)
            names = [CONFIG, ENVIRONMENT, SUMMARY]
            write_records(partial / SUMMARY, [{"id": id, **summary}])
            if history is not None:
                write_records(partial / HISTORY, [{"id": id, **row} for row in history])
                names.append(HISTORY)
            if weights is not None:
                write_tensors(partial / WEIGHTS, weights)
                names.append(WEIGHTS)
            manifest = seal(partial, id, source, names)
            return self._place(partial, manifest)
        finally:
            shutil.rmtree(partial, ignore_errors=True)

    def damaged(self, *, weights: bool = True) -> dict[str, DamagedRunError]:
        """The runs whose files are no longer what their manifests say, by name."""
        found = {}
        for run in self.runs():
            try:
                run.check(weights=weights)
            except DamagedRunError as error:
                found[run.id] = error
        return found

    def set_aside(self, id: str) -> Path:
        """Move a damaged run away, whole, so that its cell counts as missing."""
        target = self.path / ".damaged" / f"{id}.{secrets.token_hex(4)}"
        target.parent.mkdir(exist_ok=True)
        os.rename(self.path / id, target)
        return target

    def tidy(self, older_than: float = 600.0) -> None:
        """Remove what writers that were killed left behind: partial runs that nobody touched for so many seconds."""
        now = time.time()
        for folder in self.partial_folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                if now - folder.stat().st_mtime >= older_than:
                    shutil.rmtree(folder, ignore_errors=True)

    def _place(self, partial: Path, manifest: Manifest) -> Run:
        target = self.path / manifest.id
        for _ in range(3):
            there = read_manifest(target)
            if there is not None and set(manifest.names) <= set(there.names):
                return Run(target, there)
            if target.exists():
                # without a manifest, or with fewer files: out of the way first, since a rename needs an empty place
                old = self.partial_folder / f"{manifest.id}.{secrets.token_hex(4)}.old"
                os.rename(target, old)
                shutil.rmtree(old, ignore_errors=True)
            try:
                os.rename(partial, target)
            except OSError:
                if not (target / MANIFEST).exists():
                    raise
                continue  # another process placed the same run in this instant
            flush(self.path)
            return Run(target, manifest)
        raise AssertionError("unreachable: a placed run stays placed")

    def _folders(self) -> Iterator[Path]:
        return (path for path in self.path.iterdir() if path.is_dir() and not path.name.startswith("."))


def _write_json(path: Path, record: Mapping[str, Any]) -> None:
    write_bytes(path, (json.dumps(record, indent=1, sort_keys=True) + "\n").encode())


def _require_new(path: Path, create: bool) -> None:
    if not path.exists():
        require(
            create,
            required=f"a store at {path}",
            got="no such folder",
            remedy="`rankfall sweep GRID.toml --store FOLDER` makes one",
        )
        return
    require(path.is_dir(), required=f"a folder at {path}", got="a file", remedy="name another place for the store")
    # names with a dot do not count: another process may be writing the mark in this instant
    held = [item.name for item in path.iterdir() if not item.name.startswith(".")]
    if (path / MARK).exists():  # ... or have written it since we looked
        return
    require(
        create and not held,
        required=f"a store at {path}, that is a folder with {MARK}",
        got=f"a folder with {held[0]} and no {MARK}" if held else "an empty folder",
        remedy="name the folder of a store, or a new one for a sweep to fill",
    )


def _require_version(mark: Path) -> None:
    try:
        found = read_json(mark)["version"]
    except (ValueError, KeyError, TypeError):
        found = "none that can be read"
    require(
        found == VERSION,
        required=f"a store of version {VERSION} in {mark.parent}",
        got=f"version {found}",
        remedy="open it with the rankfall that wrote it, export with `rankfall runs --export-results`, "
        "and import the results into a new store",
    )
