"""Who is at work on a store: one small file per process, touched as long as the process lives."""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rankfall.errors import RequestError
from rankfall.store.damage import read_object, set_aside
from rankfall.store.files import storage_errors, write_bytes

PULSE = 5.0
"""Seconds between two signs of life."""

PATIENCE = 60.0
"""A process of another machine that gave no sign of life for so many seconds is taken for dead."""

TOKEN = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,199}")
"""What names an owner: a plain file name."""

PRESENT: set[str] = set()
"""Tokens under which this process is at work."""


@dataclass(frozen=True)
class Standing:
    """What is known of the process behind a token."""

    process: str
    """For people: its number and its machine."""
    here: bool
    """On our machine, so that `alive` is known; of others it is judged by their silence."""
    alive: bool
    silent: float
    """Seconds since its last sign of life."""


class Owner:
    """This process at a store. A given `token` lets a retried task go on as the one that was killed."""

    def __init__(
        self,
        folder: Path,
        token: str | None = None,
        patience: float = PATIENCE,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder = folder
        machine = re.sub(r"[^A-Za-z0-9_-]", "-", socket.gethostname())[:100]
        self.token = token or f"{machine}-{os.getpid()}-{secrets.token_hex(3)}"
        self.patience = patience
        self._note = note
        self._observed: dict[str, tuple[float, float]] = {}
        self._done = threading.Event()
        self._pulse: threading.Thread | None = None

    def enter(self) -> None:
        """Say that this process is here, and go on saying so from a thread of its own."""
        if self._pulse is not None:
            return
        with storage_errors(self.folder):
            # not the parents: where a store was moved away, none must appear in its old place
            self.folder.parent.mkdir(exist_ok=True)
            self.folder.mkdir(exist_ok=True)
        self._sign()
        PRESENT.add(self.token)
        self._done.clear()
        self._pulse = threading.Thread(target=self._beat, name="rankfall-pulse", daemon=True)
        self._pulse.start()

    def leave(self) -> None:
        """Stop, and take the file away."""
        if self._pulse is None:
            return
        PRESENT.discard(self.token)
        self._done.set()
        self._pulse.join()
        self._pulse = None
        (self.folder / self.token).unlink(missing_ok=True)

    def is_alive(self, token: str) -> bool:
        """Whether the process behind a token still works."""
        if token == self.token:
            return True
        found = self.standing(token)
        return found is not None and found.alive

    def standing(self, token: str) -> Standing | None:
        """What is known of an owner; None when it left, or when its file is damaged and so set aside."""
        path = self.folder / token
        try:
            record = read_object(path)
            touched = path.stat().st_mtime
            machine, pid, started = _checked(record)
        except FileNotFoundError:
            return None
        except ValueError as error:
            moved = set_aside(path, self.folder.parents[1], f"owner-{token}")
            if moved is not None:
                self._note(
                    f"{path} is damaged ({error}); moved to {moved}, and what that process had claimed is free"
                )
            return None
        silent = self._silent(token, touched)
        if machine == host():
            if pid == os.getpid():
                alive = token in PRESENT  # left behind by this very process when its store was moved away
            else:
                alive = started is not None and process_start(pid) == started
            return Standing(f"process {pid} on this machine", True, alive, silent)
        place = "".join(letter for letter in machine.partition("/")[0] if letter.isprintable())[:80]
        return Standing(f"process {pid} on {place}", False, silent < self.patience, silent)

    def _silent(self, token: str, touched: float) -> float:
        """Seconds since a stamp, or for how long we have been looking at this very stamp, whichever is more.

        The second does not depend on any clock of day: a clock that was set back puts stamps into the future.
        """
        now = time.monotonic()
        stamp, since = self._observed.get(token, (touched, now))
        if stamp != touched:
            since = now
        self._observed[token] = (touched, since)
        return max(now - since, self._now() - touched)

    def _sign(self) -> None:
        record = {"host": host(), "pid": os.getpid(), "started": process_start(os.getpid())}
        write_bytes(self.folder / self.token, json.dumps(record).encode())

    def _beat(self) -> None:
        path = self.folder / self.token
        while not self._done.wait(PULSE):
            try:
                os.utime(path)
            except FileNotFoundError:
                try:
                    self._sign()  # it was damaged, and a rival set it aside
                except (OSError, RequestError):
                    return
            except OSError:
                return

    def _now(self) -> float:
        # the file system's own clock, since machines that share a store need not agree on the time
        path = self.folder / f".{self.token}.{secrets.token_hex(3)}.clock"
        with storage_errors(path):
            path.touch()
            now = path.stat().st_mtime
            path.unlink(missing_ok=True)
        return now


def _checked(record: dict[str, Any]) -> tuple[str, int, str | None]:
    machine, pid, started = record.get("host"), record.get("pid"), record.get("started")
    if isinstance(machine, str) and isinstance(pid, int) and 0 < pid < 2**32 and isinstance(started, str | None):
        return machine, pid, started
    raise ValueError("no host, process and start in it")


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
