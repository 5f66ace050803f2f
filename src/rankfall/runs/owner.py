"""Who is at work on a store: one small file per process, touched as long as the process lives."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from functools import cache
from pathlib import Path
from typing import Any

from rankfall.runs.atomic import storage_errors, write_bytes

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
            record: dict[str, Any] = json.loads(path.read_bytes())
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
        return _exists(pid)
    return None if fields[0] in "ZX" else fields[19]


def _exists(pid: int) -> str | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return "alive"
    return "alive"
