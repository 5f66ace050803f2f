"""The machine a program runs on: memory that can be had, threads of numerical libraries, folders for what is kept."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.errors import require

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be had without swapping: of the machine, or of the container where that has less."""
    import psutil

    free = int(psutil.virtual_memory().available)
    left = _container_memory()
    return free if left is None else min(free, left)


def _container_memory() -> int | None:
    """What a control group still allows; None without a limit."""
    try:
        most = (CGROUP / "memory.max").read_text().strip()
        used = int((CGROUP / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    return None if most == "max" else max(0, int(most) - used)


@contextlib.contextmanager
def blas_threads(count: int) -> Iterator[None]:
    """So many BLAS threads of NumPy and SciPy inside, as many as before outside.

    The number belongs to the process: where several threads are inside at once, the first one's holds for all, until
    the last one leaves.
    """
    _limit.enter(count)
    try:
        yield
    finally:
        _limit.leave()


class _Limit:
    """The limit that is in force, and how many hold it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._limited = contextlib.ExitStack()

    def enter(self, count: int) -> None:
        with self._lock:
            if self._holders == 0:
                self._limited.enter_context(_blas().limit(limits=count, user_api="blas"))
            self._holders += 1

    def leave(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0:
                self._limited.close()


_limit = _Limit()


@functools.cache
def _blas() -> ThreadpoolController:
    """The libraries that were loaded when first asked: looking for them takes milliseconds."""
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


def cache_folder() -> Path:
    """Where converted models are kept: `RANKFALL_CACHE`, or the user's cache folder as the system has it."""
    from platformdirs import user_cache_path

    if own := os.environ.get("RANKFALL_CACHE"):
        return Path(own)
    return user_cache_path("rankfall", appauthor=False)


def require_room(needed: float, what: str, remedy: str) -> None:
    """Refuse what would need more bytes of memory than can be had."""
    free = available_memory()
    require(
        needed <= free,
        required=f"about {needed / 2**30:.3g} GiB of memory {what}",
        got=f"{free / 2**30:.3g} GiB",
        remedy=remedy,
    )


def require_device(device: str) -> str:
    """The device, if this machine has it."""
    import torch

    known = device == "cpu"
    if not known and re.fullmatch(r"cuda(:\d{1,4})?", device) and torch.cuda.is_available():
        known = int(device.partition(":")[2] or 0) < torch.cuda.device_count()
    require(
        known,
        required="the device cpu, or cuda where there is a GPU",
        got=device,
        remedy="use cpu",
    )
    return device
