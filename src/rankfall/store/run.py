"""A complete run: its files, and the manifest, written last, that lists each with size and checksum."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.errors import RequestError, require
from rankfall.sources import read_json
from rankfall.store.damage import is_plain_name, read_object
from rankfall.store.files import read_table, write_bytes
from rankfall.store.identity import checksum

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

CONFIG = "config.json"
SUMMARY = "summary.parquet"
HISTORY = "history.parquet"
WEIGHTS = "weights.safetensors"
ENVIRONMENT = "environment.json"
MANIFEST = "manifest.json"
"""Its presence means that the run is complete."""


class DamagedRunError(RequestError):
    """A run was complete, and a file of it is no longer what the manifest says."""


@dataclass(frozen=True)
class Entry:
    """One file of a run as it was when the run was completed."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """What a complete run consists of, and how it came into the store: `trained` or `imported`."""

    id: str
    source: str
    entries: tuple[Entry, ...]

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(entry.name for entry in self.entries)


def seal(folder: Path, id: str, source: str, names: Iterable[str]) -> Manifest:
    """Describe the files of a folder and write the manifest, atomically and last."""
    entries = tuple(Entry(name, (folder / name).stat().st_size, checksum(folder / name)) for name in sorted(names))
    document = {
        "id": id,
        "source": source,
        "files": {entry.name: {"bytes": entry.bytes, "sha256": entry.sha256} for entry in entries},
    }
    write_bytes(folder / MANIFEST, (json.dumps(document, indent=1) + "\n").encode())
    return Manifest(id, source, entries)


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a run's folder, or None when there is no such folder.

    Folders come into a store with their manifests, so that one without is a run that was complete and is damaged.
    """
    path = folder / MANIFEST
    for _ in range(2):  # a second look, since the folder may have come between the two questions of the first
        try:
            return _manifest(read_object(path), folder.name)
        except FileNotFoundError:
            if not os.path.lexists(folder):
                return None
        except ValueError as error:
            raise damage(path, str(error)) from None
        except (KeyError, TypeError, AttributeError):
            raise damage(path, "JSON that is no manifest") from None
    raise damage(path, "no such file")


def _manifest(document: Mapping[str, Any], id: str) -> Manifest:
    entries = tuple(
        Entry(str(name), int(file["bytes"]), str(file["sha256"])) for name, file in document["files"].items()
    )
    strangers = [entry.name for entry in entries if not is_plain_name(entry.name)]
    if strangers or not {CONFIG, ENVIRONMENT, SUMMARY} <= {entry.name for entry in entries}:
        raise ValueError(f"a list of other files than those of a run: {', '.join(map(repr, strangers)) or 'too few'}")
    if document["id"] != id:
        raise ValueError(f"the manifest of another run, {str(document['id'])[:40]!r}")
    return Manifest(id, str(document["source"]), entries)


def verify(folder: Path, entry: Entry, *, contents: bool = True) -> None:
    """Refuse a file that is gone, has another size or, with `contents`, another checksum."""
    path = folder / entry.name
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise damage(path, "no plain file")
        if status.st_size != entry.bytes:
            raise damage(path, f"{status.st_size} bytes instead of {entry.bytes}")
        if contents and checksum(path) != entry.sha256:
            raise damage(path, "another checksum")
    except FileNotFoundError:
        raise damage(path, "no such file") from None
    except OSError as error:
        raise damage(path, os.strerror(error.errno or 0)) from None


def damage(path: Path, found: str) -> DamagedRunError:
    """The error for a damaged file, with the way out."""
    return DamagedRunError(
        required=f"{path} as its manifest describes it" if path.name != MANIFEST else f"{path} to list a run's files",
        got=found,
        remedy="a sweep moves the run away and trains its cell anew; "
        f"`rankfall runs --store {path.parent.parent} --set-aside` only moves damaged runs away",
    )


@dataclass(frozen=True)
class Run:
    """A complete run. An imported one has a summary but neither history nor weights."""

    folder: Path
    manifest: Manifest

    @property
    def id(self) -> str:
        return self.manifest.id

    @property
    def config(self) -> dict[str, Any]:
        return self._json(CONFIG)

    @property
    def environment(self) -> dict[str, Any]:
        return self._json(ENVIRONMENT)

    def summary(self) -> dict[str, Any]:
        """The one record that a table of runs shows: id, status, configuration, results."""
        rows: list[dict[str, Any]] = self._table(SUMMARY).to_pylist()
        if len(rows) != 1:
            raise damage(self.folder / SUMMARY, f"{len(rows)} records instead of one")
        return rows[0]

    def history(self) -> pa.Table:
        """One row per chunk of training."""
        return self._table(HISTORY)

    def weights(self) -> dict[str, Tensor]:
        """The trained weights, as safetensors: nothing in the file can run."""
        from safetensors.torch import load_file

        return load_file(self._checked(WEIGHTS))

    def check(self, *, weights: bool = False) -> None:
        """Refuse the run if a file is not what the manifest says. Weights, the bulk, by their size unless asked."""
        for entry in self.manifest.entries:
            verify(self.folder, entry, contents=weights or entry.name != WEIGHTS)

    def _table(self, name: str) -> pa.Table:
        path = self._checked(name)
        try:
            return read_table(path)
        except (OSError, ValueError) as error:
            found = (str(error).splitlines() or [type(error).__name__])[0]
            raise damage(path, f"no readable Parquet ({found})") from None

    def _json(self, name: str) -> dict[str, Any]:
        path = self._checked(name)
        try:
            record: dict[str, Any] = read_json(path)
        except ValueError as error:
            raise damage(path, f"no readable JSON ({error})") from None
        return record

    def _checked(self, name: str) -> Path:
        entry = next((entry for entry in self.manifest.entries if entry.name == name), None)
        require(
            entry is not None,
            required=f"run {self.id} to hold {name}",
            got=f"a run that was {self.manifest.source}, with {', '.join(self.manifest.names)}",
            remedy="train the cell on this store to have its history and weights",
        )
        assert entry is not None
        verify(self.folder, entry)
        return self.folder / name
