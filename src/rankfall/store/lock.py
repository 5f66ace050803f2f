"""A lock between processes of one machine: a file that one of them holds, and that is free when it ends or dies."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import TracebackType

from rankfall.store.files import storage_errors

if sys.platform != "win32":
    import fcntl

POLL = 0.05
"""Seconds between two looks at whether the lock is free."""


class FileLock:
    """Held by one handle at a time, be it of this process or of another; on Windows by everyone.

    Unlike claims, which last as long as an owner gives signs of life and reach over machines, it says nothing of who
    holds it, and the system itself gives it back.
    """

    def __init__(self, path: Path) -> None:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a")

    def take(self, until: float = float("inf")) -> bool:
        """Wait for it until a time of day in seconds; whether it was had. A time that is past makes one attempt."""
        while not self._taken():
            if time.time() >= until:
                return False
            time.sleep(POLL)
        return True

    def _taken(self) -> bool:
        if sys.platform != "win32":
            try:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        return True

    def give(self) -> None:
        """Let the next have it; without effect for one who does not have it."""
        if sys.platform != "win32":
            fcntl.flock(self._file, fcntl.LOCK_UN)

    def close(self) -> None:
        """Give it up for good."""
        self._file.close()

    def __enter__(self) -> FileLock:
        self.take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
