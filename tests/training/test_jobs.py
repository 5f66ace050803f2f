"""Jobs on engines: every one is done, those that others have at hand are tried again, a stop ends before the next."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankfall.catalogue import ENGINES
from rankfall.progress import Progress, silent
from rankfall.training.engines import jobs as module
from rankfall.training.engines.jobs import Job, JobWatch, one_after_another
from rankfall.training.options import Options

TRIED: list[str] = []
PLACE = f"{__name__}:twice_busy"


def twice_busy(order: str, progress: Progress = silent) -> str:
    """Busy the first time, done the second."""
    TRIED.append(order)
    progress(order, 1.0)
    return json.dumps({"ending": "busy" if TRIED.count(order) == 1 else "finished", "order": order})


def double(order: str, progress: Progress = silent) -> str:
    return json.dumps({"ending": "finished", "twice": 2 * json.loads(order)})


@pytest.fixture(autouse=True)
def _untried() -> None:
    TRIED.clear()


def test_busy_jobs_are_tried_again_and_progress_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    ended: list[Any] = []
    told: list[str] = []
    watch = JobWatch(
        progress=lambda job: lambda what, share: told.append(f"{job.name} {what}"),
        done=lambda job, answer: ended.append((job.name, answer["order"])),
    )
    assert one_after_another([Job("a", PLACE, "1"), Job("b", PLACE, "2")], watch)
    assert ended == [("a", "1"), ("b", "2")]
    assert TRIED == ["1", "2", "1", "2"]
    assert told == ["a 1", "b 2", "a 1", "b 2"]
    assert slept == [module.POLL], "once all that is left is busy"


@pytest.mark.parametrize("name", [name for name in ENGINES.names if ENGINES[name].requires is None])
def test_a_stop_ends_before_the_next_job(name: str) -> None:
    ended: list[int] = []
    place = f"{__name__}:double"
    watch = JobWatch(stop=lambda: len(ended) == 2, done=lambda job, answer: ended.append(answer["twice"]))
    engine = ENGINES[name](Options(device="cpu"))
    jobs = [Job(str(number), place, str(number)) for number in range(4)]
    assert not engine.work_through(jobs, watch)
    assert ended == [0, 2]
