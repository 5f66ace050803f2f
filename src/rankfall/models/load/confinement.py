"""What holds while a model is being loaded: a time limit, a limit of memory, and no network."""

from __future__ import annotations

import contextlib
import importlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

from rankfall.errors import RequestError, require
from rankfall.system import available_memory

# Seconds between two interruptions of what goes on after the first.
AGAIN = 0.25


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
    expired = ended = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal expired
        expired = True
        if not ended:
            raise _OutOfTime

    restore = _torch_state()
    left, interval = signal.getitimer(signal.ITIMER_REAL)
    before = signal.signal(signal.SIGALRM, interrupt)
    with _unseen(_OutOfTime):
        try:
            # Again and again: what is raised while an object is being deleted goes nowhere.
            signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN)
            yield
            ended = True
        except _OutOfTime:
            ended = True
            restore()
            raise _out_of_time(seconds, what) from None
        finally:
            ended = True
            signal.setitimer(signal.ITIMER_REAL, left, interval)
            signal.signal(signal.SIGALRM, before)
    if expired:  # someone caught the interruption and went on
        raise _out_of_time(seconds, what)


@contextlib.contextmanager
def _unseen(kind: type[BaseException]) -> Iterator[None]:
    """Inside, nothing is printed about exceptions of this kind that Python could not raise."""
    before = sys.unraisablehook
    sys.unraisablehook = lambda told: None if isinstance(told.exc_value, kind) else before(told)
    try:
        yield
    finally:
        sys.unraisablehook = before


def _torch_state() -> Callable[[], None]:
    """What puts back the defaults that a library may have been about to put back when it was interrupted."""
    import torch
    from torch.utils import _device

    depth, device, dtype = torch._C._len_torch_function_stack(), _device.CURRENT_DEVICE, torch.get_default_dtype()

    def restore() -> None:
        while torch._C._len_torch_function_stack() > depth:
            torch._C._pop_torch_function_stack()
        _device.CURRENT_DEVICE = device
        torch.set_default_dtype(dtype)

    return restore


def _out_of_time(seconds: float, what: str) -> RequestError:
    return RequestError(
        required=f"{what} to load within {seconds:g} seconds",
        got="still loading then",
        remedy="allow more with --load-seconds if you trust it, or check the file and the disk",
    )


_turn = threading.Lock()
_inside = {"memory": 0, "offline": 0}
_before: dict[str, Any] = {}


@contextlib.contextmanager
def memory_limit(more: int = 0) -> Iterator[None]:
    """Allocations beyond the memory that is free now fail, instead of driving the machine into swapping.

    `more` is added for files that are mapped into memory. Python and torch turn the failure into an error; other
    compiled code may end the process, which is why tokenizers are tried in a process of their own. Where the system
    has no such limit, nothing happens.
    """
    with _turn:
        if _inside["memory"] == 0:
            _before["memory"] = _lower_data_limit(available_memory() + more)
        _inside["memory"] += 1
    try:
        yield
    finally:
        with _turn:
            _inside["memory"] -= 1
            earlier = _before.pop("memory") if _inside["memory"] == 0 else None
            if earlier is not None:
                resource: Any = importlib.import_module("resource")
                resource.setrlimit(resource.RLIMIT_DATA, earlier)


def _lower_data_limit(allowed: int) -> tuple[int, int] | None:
    """Limits what this process may allocate besides what it has; gives the limits from before, None if unchanged."""
    import psutil

    used = getattr(psutil.Process().memory_info(), "data", None)
    if used is None or sys.platform != "linux":
        return None
    resource: Any = importlib.import_module("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = used + allowed
    if soft != resource.RLIM_INFINITY and soft <= most:
        return None
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
    return soft, hard


_thread = threading.local()
NETWORK_EVENTS = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


@contextlib.contextmanager
def offline(wanted: bool = True) -> Iterator[None]:
    """Nothing in this thread reaches the network, whatever a configuration asks for; the hub's library is told."""
    if not wanted:
        yield
        return
    from huggingface_hub import constants

    _install_hook()
    with _turn:
        if _inside["offline"] == 0:
            _before["offline"] = constants.HF_HUB_OFFLINE
            constants.HF_HUB_OFFLINE = True
        _inside["offline"] += 1
    earlier = getattr(_thread, "offline", False)
    _thread.offline = True
    try:
        yield
    finally:
        _thread.offline = earlier
        with _turn:
            _inside["offline"] -= 1
            if _inside["offline"] == 0:
                constants.HF_HUB_OFFLINE = _before.pop("offline")


def _install_hook() -> None:
    """Once in a process: such a hook cannot be taken away, so it does nothing unless its thread is offline."""
    if not _before.get("hook"):
        _before["hook"] = True
        sys.addaudithook(_refuse_network)


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if event in NETWORK_EVENTS and getattr(_thread, "offline", False):
        address = arguments[1] if event in ("socket.connect", "socket.sendto") else arguments[0]
        local = event == "socket.connect" and isinstance(address, (str, bytes))
        if not local:
            raise OSError(f"the network is off while a model is loaded (asked for {address!r})")
