"""Measure in turns with the model: it computes on all cores, then it waits while its tokens are measured on all.

Both at once would be slower on a processor: the model splits every layer evenly over the cores, and one that is busy
with something else makes the others wait. So tokens are gathered, and the model is held when enough have come; how
much waits is bounded, so that memory does not grow with depth.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Generic, TypeVar, final

import torch
from torch import Tensor

Ready = Callable[[], object]
"""Waits until tokens have arrived."""

Result = TypeVar("Result")

# Bytes of tokens that may wait before the model is held. Every turn costs: threads wait for the last of them, and the
# model finds the caches cold.
ROOM = 64 << 20


def threads_for(device: torch.device) -> int:
    """As many as PyTorch may use, if the model computes there too; else every core of this process."""
    if device.type == "cpu":
        return torch.get_num_threads()
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def to_host(tokens: Tensor) -> tuple[Tensor, Ready]:
    """A copy in main memory, because the model is free to overwrite what it gave us; a GPU does not wait for it."""
    if not tokens.is_cuda:
        return tokens.detach().clone(), lambda: None
    copy = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=True)
    copy.copy_(tokens.detach(), non_blocking=True)
    arrived = torch.cuda.Event()
    arrived.record()
    return copy, arrived.synchronize


@final
@dataclass(frozen=True, eq=False)
class _Task(Generic[Result]):
    tokens: Tensor
    ready: Ready
    work: Callable[[Tensor], Result]

    def run(self) -> Result:
        self.ready()
        with torch.inference_mode():
            return self.work(self.tokens)


@final
class Workers(Generic[Result]):
    """Threads that do the work given for each token matrix; `done` is called once for every one finished."""

    def __init__(self, done: Callable[[], None] = lambda: None) -> None:
        self._done = done
        self._pool: ThreadPoolExecutor | None = None
        self._waiting: list[_Task[Result]] = []
        self._results: list[Result] = []

    def submit(self, tokens: Tensor, work: Callable[[Tensor], Result]) -> None:
        """Take a copy of the tokens; at times, measure all that wait before returning."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(threads_for(tokens.device), thread_name_prefix="rankfall-measure")
        self._waiting.append(_Task(*to_host(tokens), work))
        if sum(task.tokens.nbytes for task in self._waiting) >= ROOM:
            self._work_off()

    def results(self) -> list[Result]:
        """Everything measured, in the order it was submitted."""
        self._work_off()
        return self._results

    def _work_off(self) -> None:
        if self._pool is None:
            return
        tasks, self._waiting = self._waiting, []
        for result in self._pool.map(_Task.run, tasks):
            self._results.append(result)
            self._done()

    def __enter__(self) -> Workers[Result]:
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
