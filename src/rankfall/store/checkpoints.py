"""Checkpoints of unfinished stacks: tensors and rows first, then one JSON file that names and describes them.

<store>/.checkpoints/<stack>/checkpoint.json          members, counters, files, checksums; written last
<store>/.checkpoints/<stack>/state-<n>.safetensors    everything needed to go on bit for bit
<store>/.checkpoints/<stack>/history-<n>.parquet      the metric rows so far
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import rankfall
from rankfall.store.damage import is_plain_name, read_object, set_aside
from rankfall.store.files import Record, read_records, storage_errors, write_bytes, write_records, write_tensors
from rankfall.store.identity import checksum

if TYPE_CHECKING:
    from torch import Tensor

INDEX = "checkpoint.json"
ENDINGS = [".parquet", ".safetensors"]
PLAIN = str | int | float | bool | None


@dataclass(frozen=True)
class Checkpoint:
    """An unfinished stack: which configurations it trains together and how far it came."""

    folder: Path
    members: tuple[Mapping[str, Any], ...]
    chunk: int
    seconds: float
    files: Mapping[str, str]
    """Checksum by file name; empty when the stack was begun but nothing saved yet."""

    def damage(self) -> str | None:
        """The file of the state that is not what was written, and what is wrong with it."""
        for name, digest in self.files.items():
            try:
                if checksum(self.folder / name) != digest:
                    return f"{self.folder / name} is damaged (another checksum)"
            except OSError as error:
                return f"{self.folder / name} is damaged ({os.strerror(error.errno or 0)})"
        return None

    def tensors(self) -> dict[str, Tensor]:
        from safetensors.torch import load_file

        return load_file(self.folder / self._named(".safetensors"))

    def history(self) -> list[dict[str, Any]]:
        return read_records(self.folder / self._named(".parquet"))

    def _named(self, ending: str) -> str:
        return next(name for name in self.files if name.endswith(ending))


class Checkpoints:
    """The unfinished stacks of a store."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def names(self) -> list[str]:
        """Every stack that was begun and is not finished."""
        return sorted(path.parent.name for path in self.folder.glob(f"[!.]*/{INDEX}"))

    def damaged(self) -> dict[str, str]:
        """What is wrong with indices that cannot be read, by stack. They are written in one step: nobody is at it."""
        found = {path.name: self.damage(path.name, state=False) for path in sorted(self.folder.glob("[!.]*"))}
        return {name: damage for name, damage in found.items() if damage is not None}

    def find(self, name: str) -> Checkpoint | None:
        """The checkpoint of a stack. One of another version of the engine does not count, nor a damaged index."""
        try:
            return _checkpoint(self.folder / name)
        except ValueError:
            return None

    def damage(self, name: str, *, state: bool = True) -> str | None:
        """What is wrong with a checkpoint: which file, and why. Without `state`, of its index alone."""
        try:
            found = _checkpoint(self.folder / name)
        except ValueError as error:
            return f"{self.folder / name / INDEX} is damaged ({error})"
        return found.damage() if found is not None and state else None

    def set_aside(self, name: str) -> Path | None:
        """Move a damaged checkpoint away, whole."""
        return set_aside(self.folder / name, self.folder.parent, f"checkpoint-{name}")

    def begin(self, name: str, members: Sequence[Mapping[str, Any]]) -> None:
        """Note which configurations are trained together, so that whoever goes on trains exactly the same stack."""
        if self.find(name) is None:
            self._index(name, members, chunk=0, seconds=0.0, files={})

    def save(
        self,
        name: str,
        members: Sequence[Mapping[str, Any]],
        *,
        tensors: Mapping[str, Tensor],
        history: Sequence[Record],
        chunk: int,
        seconds: float,
    ) -> None:
        """Save a stack. The previous checkpoint stays until this one is whole."""
        folder = self.folder / name
        mark = f"{chunk:07d}-{secrets.token_hex(3)}"
        state, rows = f"state-{mark}.safetensors", f"history-{mark}.parquet"
        self._make(folder)
        try:
            write_tensors(folder / state, tensors)
            write_records(folder / rows, history)
            with storage_errors(folder):
                files = {file: checksum(folder / file) for file in (state, rows)}
            self._index(name, members, chunk=chunk, seconds=seconds, files=files)
        finally:
            # after success the files of the checkpoint before, after a failure the new ones that no index names
            self._tidy(name)

    def remove(self, name: str) -> None:
        """Remove a finished stack: renamed in one step, so that a killed process leaves no half of it."""
        gone = self.folder / f".{name}.{secrets.token_hex(4)}"
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.folder / name, gone)
        shutil.rmtree(gone, ignore_errors=True)

    def tidy(self, older_than: float = 600.0) -> None:
        """Remove what a death left: stacks being forgotten, and folders of that age in which none was ever begun."""
        now = time.time()
        for folder in self.folder.glob("*"):
            with contextlib.suppress(FileNotFoundError):
                unused = not (folder / INDEX).exists() and now - folder.stat().st_mtime >= older_than
                if folder.name.startswith(".") or unused:
                    shutil.rmtree(folder, ignore_errors=True)

    def _index(
        self, name: str, members: Sequence[Mapping[str, Any]], *, chunk: int, seconds: float, files: Mapping[str, str]
    ) -> None:
        folder = self.folder / name
        self._make(folder)
        record = {
            "rankfall": rankfall.__version__,
            "members": [dict(member) for member in members],
            "chunk": chunk,
            "seconds": seconds,
            "files": dict(files),
        }
        write_bytes(folder / INDEX, json.dumps(record).encode())

    def _tidy(self, name: str) -> None:
        now = self.find(name)
        with contextlib.suppress(OSError):
            for path in (self.folder / name).iterdir():
                if path.name != INDEX and (now is None or path.name not in now.files):
                    path.unlink(missing_ok=True)

    def _make(self, folder: Path) -> None:
        with storage_errors(folder):
            # not the parents: where a store was moved away, none must appear in its old place
            self.folder.mkdir(exist_ok=True)
            folder.mkdir(exist_ok=True)


def _checkpoint(folder: Path) -> Checkpoint | None:
    """What an index says; None when there is none or it is of another version, ValueError when it is damaged."""
    try:
        record = read_object(folder / INDEX)
    except FileNotFoundError:
        return None
    version, members, files = record.get("rankfall"), record.get("members"), record.get("files")
    if isinstance(version, str) and version != rankfall.__version__:
        return None
    counted = all(isinstance(record.get(name), int | float) for name in ("chunk", "seconds"))
    if not (counted and version and isinstance(members, list) and isinstance(files, dict)):
        raise ValueError("JSON that is no checkpoint")
    for member in members:
        if not isinstance(member, dict) or not all(isinstance(value, PLAIN) for value in member.values()):
            raise ValueError("members that are no configurations")
    endings = sorted(Path(name).suffix for name in files if is_plain_name(name))
    if not members or (files and (endings != ENDINGS or len(files) != len(ENDINGS))):
        raise ValueError("no list of a stack's members and files")
    return Checkpoint(folder, tuple(members), int(record["chunk"]), float(record["seconds"]), files)
