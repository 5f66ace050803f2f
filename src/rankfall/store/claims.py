"""Who is at work on a store: one small file per process, touched as long as the process lives."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from rankfall.store.files import read_json, storage_errors, write_bytes

PULSE = 5.0
"""Seconds between two signs of life."""

PATIENCE = 60.0
"""A process of another machine that gave no sign of life for so many seconds is taken for dead."""


class Owner:
    """This process at a store. A given `token` lets a retried task go on as the one that was killed."""

    def __init__(self, folder: Path, token: str | None = None, patience: float = PATIENCE) -> None:
        self.folder = folder
        self.token = token or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self.patience = patience
        self._done = threading.Event()
        self._pulse: threading.Thread | None = None

    def enter(self) -> None:
        """Say that this process is here, and go on saying so from a thread of its own."""
        if self._pulse is not None:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        record = {"host": host(), "pid": os.getpid(), "started": process_start(os.getpid())}
        write_bytes(self.folder / self.token, json.dumps(record).encode())
        self._done.clear()
        self._pulse = threading.Thread(target=self._beat, name="rankfall-pulse", daemon=True)
        self._pulse.start()

    def leave(self) -> None:
        """Stop, and take the file away."""
        if self._pulse is None:
            return
        self._done.set()
        self._pulse.join()
        self._pulse = None
        (self.folder / self.token).unlink(missing_ok=True)

    def is_alive(self, token: str) -> bool:
        """Whether the process behind a token still works: known for our machine, judged by silence for others."""
        if token == self.token:
            return True
        path = self.folder / token
        try:
            record: dict[str, Any] = read_json(path)
            touched = path.stat().st_mtime
        except (FileNotFoundError, ValueError):
            return False
        if record.get("host") == host():
            started = process_start(int(record["pid"]))
            return started is not None and started == record.get("started")
        return self._now() - touched < self.patience

    def _beat(self) -> None:
        path = self.folder / self.token
        while not self._done.wait(PULSE):
            try:
                os.utime(path)
            except OSError:
                return

    def _now(self) -> float:
        # the file system's own clock, since machines that share a store need not agree on the time
        path = self.folder / f".{self.token}.clock"
        with storage_errors(path):
            path.touch()
            now = path.stat().st_mtime
            path.unlink(missing_ok=True)
        return now


@cache
def host() -> str:
    """This machine, and the process numbering within it (containers may share a host name)."""
    try:
        space: object = os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        space = "-"
    return f"{socket.gethostname()}/{space}"


def process_start(pid: int) -> str | None:
    """When a process of this machine started, in the system's ticks, or None when it is gone.

    The number of a dead process may be given to a new one; its start tells them apart.
    """
    try:
        # field 22 of stat; the name in field 2 may hold spaces and brackets, so count from its end
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self/stat").exists():
            return None
        import psutil

        return "alive" if psutil.pid_exists(pid) else None
    return None if fields[0] in "ZX" else fields[19]


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
