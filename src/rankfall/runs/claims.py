"""Claims: which process works on which cell, so that two of them may share a store without doing a thing twice."""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rankfall.runs.atomic import storage_errors
from rankfall.runs.owner import PATIENCE, Owner


class Claims:
    """Claim files of a store, made with O_EXCL; each names its owner, and a dead owner's claim may be taken.

    Two processes that take over the same dead claim in the same instant may both succeed. They then train the same
    cell twice and write the same numbers: wasteful, never wrong.
    """

    def __init__(self, folder: Path, token: str | None = None, patience: float = PATIENCE) -> None:
        self.folder = folder
        self.owner = Owner(folder / "owners", token, patience)
        self.held: set[str] = set()

    def __enter__(self) -> Claims:
        self.owner.enter()
        return self

    def __exit__(self, *_: object) -> None:
        self.release(tuple(self.held))
        self.owner.leave()

    def take_all(self, names: Iterable[str]) -> bool:
        """Take every name or none. Always in the same order, so that of two rivals one gets everything."""
        taken: list[str] = []
        for name in sorted(names):
            if not self.take(name):
                self.release(taken)
                return False
            taken.append(name)
        return True

    def take_free(self, names: Sequence[str]) -> list[str]:
        """Take what nobody else works on, and say which."""
        return [name for name in names if self.take(name)]

    def take(self, name: str) -> bool:
        """Take one name, from a dead owner if need be; False when somebody else works on it."""
        self.owner.enter()
        if name in self.held:
            return True
        if not self._create(name):
            holder = self.holder(name)
            if holder is not None and holder != self.owner.token:
                return False
            if holder != self.owner.token and not (self._clear(name) and self._create(name)):
                return False
        self.held.add(name)
        return True

    def release(self, names: Iterable[str]) -> None:
        """Give names back."""
        for name in names:
            if name in self.held:
                self.held.discard(name)
                # a claim that was taken from us, since we seemed dead, is not ours to remove
                if self._read(name) == self.owner.token:
                    (self.folder / name).unlink(missing_ok=True)

    def holder(self, name: str) -> str | None:
        """The token of the living owner of a name, or None."""
        token = self._read(name)
        return token if token and self.owner.is_alive(token) else None

    def tidy(self, older_than: float = 600.0) -> None:
        """Remove what dead processes left: claims, signs of life, and files of that age that were never renamed."""
        for path in self.folder.glob("[!.]*"):
            if path.is_file() and self.holder(path.name) is None:
                self._clear(path.name)
        for path in self.owner.folder.glob("[!.]*"):
            if not self.owner.is_alive(path.name):
                path.unlink(missing_ok=True)
        now = time.time()
        for path in self.folder.rglob(".*"):
            with contextlib.suppress(FileNotFoundError):
                if now - path.stat().st_mtime >= older_than:
                    path.unlink()

    def _read(self, name: str) -> str | None:
        try:
            return (self.folder / name).read_text()
        except FileNotFoundError:
            return None

    def _create(self, name: str) -> bool:
        path = self.folder / name
        beside = path.with_name(f".{name}.{secrets.token_hex(4)}.tmp")
        with storage_errors(path):
            try:
                # a link appears with its contents, unlike a file opened with O_EXCL and then written
                beside.write_text(self.owner.token)
                os.link(beside, path)
            except FileExistsError:
                return False
            except PermissionError:
                return self._create_exclusively(path)
            finally:
                beside.unlink(missing_ok=True)
        return True

    def _create_exclusively(self, path: Path) -> bool:
        """For file systems without hard links: an empty claim is seen as dead only until its owner is written."""
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        except FileExistsError:
            return False
        with os.fdopen(handle, "w") as file:
            file.write(self.owner.token)
        return True

    def _clear(self, name: str) -> bool:
        """Move a dead claim out of the way; put it back when it turns out that a rival was quicker."""
        path = self.folder / name
        aside = path.with_name(f".{name}.{secrets.token_hex(4)}.stale")
        try:
            os.rename(path, aside)
        except FileNotFoundError:
            return True
        token = aside.read_text()
        alive = bool(token) and self.owner.is_alive(token)
        if alive:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink(missing_ok=True)
        return not alive
