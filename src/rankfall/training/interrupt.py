"""Ctrl-C and a scheduler's SIGTERM as a request: finish the chunk, save, end. A second Ctrl-C ends at once."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals(told: Callable[[], None] = lambda: None) -> Iterator[Callable[[], bool]]:
    """Yield a function that says whether to stop. Outside the main thread, where no signal arrives, it never does."""
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    asked = threading.Event()

    def answer(number: int, frame: FrameType | None) -> None:
        if asked.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        asked.set()
        told()

    before = {number: signal.signal(number, answer) for number in SIGNALS}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
