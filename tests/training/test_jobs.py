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


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_series_on_ray_is_the_series_here(tmp_path) -> None:
    ray = pytest.importorskip("ray")
    from tests.models.small import some_text
    from tests.models.trained import save_checkpoints

    import rankfall

    save_checkpoints(tmp_path / "runs", (0, 3), layers=2)
    (tmp_path / "runs" / "checkpoint-9").mkdir()
    cheap: dict[str, Any] = {"text": some_text(40), "tokens": 10, "heads": False}
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        names = f"{tmp_path}/runs/checkpoint-*"
        there = rankfall.series(names, store=tmp_path / "there", engine="ray", **cheap)
    finally:
        ray.shutdown()
    here = rankfall.series(names, store=tmp_path / "here", **cheap)
    assert there.failed == here.failed
    assert list(there.failed) == ["checkpoint-9"]
    for one, other in zip(there.models[:2], here.models[:2], strict=True):
        assert one.id == other.id
        assert one.record["depth"] == other.record["depth"]
