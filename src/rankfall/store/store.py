"""The store: a folder of complete runs, each named by its configuration. Half-written runs never count.

<store>/store.json                  which version of the layout this is
<store>/<id>/                       config.json, summary.parquet, history.parquet, weights.safetensors,
                                    environment.json, and manifest.json, written last
<store>/.claims/                    who works on what at this moment
<store>/.checkpoints/               unfinished stacks
<store>/.partial/                   runs being written; renamed into place when they are whole
<store>/.corpora/                   token ids of texts that language models were trained on
<store>/.audits/                    audits of language models, as `store.audits` lays them out
<store>/.damaged/                   what was damaged and set aside: runs, checkpoints, claims
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from rankfall.errors import RequestError, require
from rankfall.store.damage import read_object, set_aside
from rankfall.store.files import Record, flush, storage_errors, write_bytes, write_records, write_tensors
from rankfall.store.identity import DIGITS, identity, settings
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
LAYOUT = {"format": "rankfall store", "version": VERSION}
MARK = "store.json"
NAME = re.compile(rf"[0-9a-f]{{{DIGITS}}}")
"""The name of a run."""
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
            write_bytes(mark, (json.dumps(LAYOUT) + "\n").encode())
        _require_version(mark)

    @property
    def claims_folder(self) -> Path:
        return self.path / ".claims"

    @property
    def checkpoints_folder(self) -> Path:
        return self.path / ".checkpoints"

    @property
    def audits_folder(self) -> Path:
        return self.path / ".audits"

    @property
    def partial_folder(self) -> Path:
        return self.path / ".partial"

    def names(self) -> list[str]:
        """Whatever is named like a run, in a fixed order, damaged or not; other things in a store are left alone."""
        return sorted(path.name for path in self.path.iterdir() if NAME.fullmatch(path.name))

    def ids(self) -> list[str]:
        """The complete runs whose manifests can be read, in the same order."""
        return [run.id for run in self.runs()]

    def runs(self) -> Iterator[Run]:
        """Every complete run whose manifest can be read; `damaged` has the others."""
        for id in self.names():
            run = None
            with contextlib.suppress(DamagedRunError):
                run = self.find(id)
            if run is not None:
                yield run

    def find(self, id: str) -> Run | None:
        """The complete run of that name, or None; an error when there is one whose manifest is damaged."""
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
        """Whether the run is complete, sound and holds these files; `damage_of` tells a damaged one from none."""
        try:
            found = self.find(id)
            if found is None or not set(parts) <= set(found.manifest.names):
                return False
            found.check()
        except DamagedRunError:
            return False
        return True

    def damage_of(self, id: str, *, weights: bool = False) -> DamagedRunError | None:
        """What is wrong with the run of that name, if there is one. Weights by their size unless asked."""
        try:
            found = self.find(id)
            if found is not None:
                found.check(weights=weights)
        except DamagedRunError as error:
            return error
        return None

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
            # not the parents: where a store was moved away, none must appear in its old place
            self.partial_folder.mkdir(exist_ok=True)
            partial.mkdir()
        try:
            with storage_errors(partial):
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

    def damaged(self) -> dict[str, DamagedRunError]:
        """The runs whose files are no longer what their manifests say, or whose manifests are damaged, by name."""
        errors = {id: self.damage_of(id, weights=True) for id in self.names()}
        return {id: error for id, error in errors.items() if error is not None}

    def set_aside(self, id: str) -> Path | None:
        """Move a damaged run away, whole, so that its cell counts as missing; None when it was moved already."""
        return set_aside(self.path / id, self.path)

    def repair(self, note: Callable[[str], None]) -> None:
        """Set aside what lies where a folder of the store belongs."""
        for folder in (
            self.claims_folder,
            self.claims_folder / "owners",
            self.checkpoints_folder,
            self.partial_folder,
        ):
            if os.path.lexists(folder) and not folder.is_dir():
                note(f"{folder} is no folder; moved to {set_aside(folder, self.path, folder.name.strip('.'))}")

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
            try:
                there = read_manifest(target)
                if there is not None and set(manifest.names) <= set(there.names):
                    Run(target, there).check()
                    return Run(target, there)
            except DamagedRunError:
                self.set_aside(manifest.id)
            if target.exists():
                # with fewer files than ours: out of the way first, since a rename needs an empty place
                old = self.partial_folder / f"{manifest.id}.{secrets.token_hex(4)}.old"
                with contextlib.suppress(FileNotFoundError):
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
        found = read_object(mark)["version"]
    except (FileNotFoundError, ValueError, KeyError) as error:
        raise RequestError(
            required=f"a store of version {VERSION} in {mark.parent}",
            got=f"version none that can be read: {mark} is damaged ({error})",
            remedy=f"if this version wrote it, put {json.dumps(LAYOUT)} into that file: the runs beside it are whole",
        ) from None
    require(
        found == VERSION,
        required=f"a store of version {VERSION} in {mark.parent}",
        got=f"version {found}",
        remedy="open it with the rankfall that wrote it, export with `rankfall runs --export-results`, "
        "and import the results into a new store",
    )
