"""Work other than training, for any engine: a function by its place, and one JSON text to call it with."""

from __future__ import annotations

import importlib
import json
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

from rankfall.progress import Progress, silent

BUSY = "busy"
"""The ending of a job that another process has at hand; it is tried again later."""

POLL = 0.5
"""Seconds between two looks at jobs that others work on."""


@final
@dataclass(frozen=True)
class Job:
    """`place` names a function, `package.module:function`, of an order and a progress that answers in JSON.

    The answer says under `ending` how it ended; whatever else it made lies in a store.
    """

    name: str
    place: str
    order: str

    def run(self, progress: Progress = silent) -> str:
        """Do it here."""
        module, _, function = self.place.partition(":")
        answer: str = getattr(importlib.import_module(module), function)(self.order, progress)
        return answer


@final
@dataclass(frozen=True)
class JobWatch:
    """What the caller learns and decides while jobs are done."""

    stop: Callable[[], bool] = lambda: False
    """Asked before every job; True ends."""
    progress: Callable[[Job], Progress] = lambda job: silent
    """Who is told how far a job is, where it is done in this process."""
    done: Callable[[Job, Mapping[str, Any]], None] = lambda job, answer: None
    """Told the answer of every job that ended."""
    busy: Callable[[Job, Mapping[str, Any]], None] = lambda job, answer: None
    """Told the answer of a job that another process has at hand, each time that it is tried."""


def one_after_another(jobs: Sequence[Job], watch: JobWatch) -> bool:
    """Do all jobs in this process; False when `watch.stop` ended it early."""
    waiting, busy = deque(jobs), 0
    while waiting:
        if watch.stop():
            return False
        job = waiting.popleft()
        answer = json.loads(job.run(watch.progress(job)))
        if answer["ending"] != BUSY:
            busy = 0
            watch.done(job, answer)
            continue
        watch.busy(job, answer)
        waiting.append(job)
        busy += 1
        if busy >= len(waiting):
            busy = 0
            time.sleep(POLL)
    return True
