"""Stop loading a model that takes too long.

The system's timer interrupts the main thread, so waiting, looping and reading file after file all end, and temporary
files are removed on the way out. What it cannot stop: a single call into compiled code that does not return (the
interruption comes when it does), and loading in a thread other than the main one, or on a system without SIGALRM:
there no limit holds.
"""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType

from rankfall.errors import RequestError, require


class _OutOfTime(BaseException):
    """Not an Exception: libraries catch those and go on."""


@contextlib.contextmanager
def time_limit(seconds: float, what: str) -> Iterator[None]:
    """Refuse in one line when the block takes longer than this."""
    require(
        seconds > 0,
        required="a positive number of seconds to load in",
        got=seconds,
        remedy="a model of a few billion parameters opens within a minute",
    )
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return
    expired = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal expired
        expired = True
        raise _OutOfTime

    before = signal.signal(signal.SIGALRM, interrupt)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, left, interval)
    except _OutOfTime:
        raise _refusal(seconds, what) from None
    finally:
        signal.signal(signal.SIGALRM, before)
    if expired:  # someone caught the interruption and went on
        raise _refusal(seconds, what)


def _refusal(seconds: float, what: str) -> RequestError:
    return RequestError(
        required=f"{what} to load within {seconds:g} seconds",
        got="still loading then",
        remedy="allow more with --load-seconds if you trust it, or check the file and the disk",
    )
