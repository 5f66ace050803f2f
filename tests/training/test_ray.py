"""The Ray engine on a real local Ray with two workers, one of which is killed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from soak.lives import contents
from tests.training.conftest import QUICK, tiny

import rankfall
from rankfall.catalogue import ENGINES
from rankfall.errors import RequestError
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.store import Store
from rankfall.training.engines.ray import train_task
from rankfall.training.options import Options
from rankfall.training.plan import stack_name
from rankfall.training.sweep import sweep

CELLS = [tiny(seed=0, steps=600), tiny(seed=1, steps=300)]


@pytest.fixture(scope="module")
def two_workers() -> Iterator[None]:
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


def kill_the_worker_of(store: Store, name: str, seen: list[int], given_up: threading.Event) -> None:
    """Wait for a stack's checkpoint, then kill the process that trains it."""
    while not given_up.wait(0.01):
        saved = Checkpoints(store.checkpoints_folder).find(name)
        if saved is not None and saved.chunk >= 2:
            (owner,) = store.claims_folder.glob(f"owners/ray-*-{name}")
            pid = json.loads(owner.read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            seen.append(pid)
            return


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_killed_worker_s_stack_is_retried_and_goes_on(two_workers: None, store: Store, tmp_path: Path) -> None:
    killed: list[int] = []
    done = threading.Event()
    killer = threading.Thread(target=kill_the_worker_of, args=(store, stack_name(CELLS[:1]), killed, done))
    killer.start()
    try:
        engine = ENGINES["ray"](QUICK)
        assert (engine.device(), engine.workers()) == ("cpu", 2)
        outcome = sweep(CELLS, store, engine=engine)
    finally:
        done.set()
        killer.join()
    assert len(killed) == 1
    assert outcome.complete
    alone = Store(tmp_path / "alone")
    for cell in CELLS:
        sweep([cell], alone, options=QUICK)
    assert contents(store) == contents(alone)
    assert [path for path in store.claims_folder.rglob("*") if path.is_file()] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_language_models_train_and_are_audited_on_workers(two_workers: None, tmp_path: Path) -> None:
    """The same runs and the same audits as on the local engine; claims are given back."""
    grid, book = tmp_path / "grid.toml", tmp_path / "book.txt"
    sizes = "width = 8\nlayers = 1\nheads = 2\nrank = [2, 4]\ncontext = 16\nbatch = 2\nsteps = 100\n"
    grid.write_text(f'task = "text"\n{sizes}')
    book.write_text("\n\n".join(f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(400)))
    given = {"text": book, "threads": 1, "device": "cpu", "checkpoint_seconds": 0}
    there = rankfall.sweep(grid, store=tmp_path / "there", engine="ray", **given)
    here = rankfall.sweep(grid, store=tmp_path / "here", **given)
    assert there.complete
    assert contents(Store(tmp_path / "there")) == contents(Store(tmp_path / "here"))
    columns = ("id", "rank", "nats_per_byte", "head_rank_used", "head_rank_needed", "token_rank_last", "missing")
    assert [[row[name] for name in columns] for row in there.audits] == [
        [row[name] for name in columns] for row in here.audits
    ]
    assert [row["head_rank_used"] is not None for row in there.audits] == [True, True]
    for folder in (".claims", ".audits/.claims"):
        assert [path for path in (tmp_path / "there" / folder).rglob("*") if path.is_file()] == []


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_series_of_audits_is_the_series_here(two_workers: None, tmp_path: Path) -> None:
    from tests.models.small import some_text
    from tests.models.trained import save_checkpoints

    save_checkpoints(tmp_path / "runs", (0, 3), layers=2)
    (tmp_path / "runs" / "checkpoint-9").mkdir()
    cheap: dict[str, Any] = {"text": some_text(40), "tokens": 10, "heads": False}
    names = f"{tmp_path}/runs/checkpoint-*"
    there = rankfall.series(names, store=tmp_path / "there", engine="ray", **cheap)
    here = rankfall.series(names, store=tmp_path / "here", **cheap)
    assert there.failed == here.failed
    assert list(there.failed) == ["checkpoint-9"]
    for one, other in zip(there.models[:2], here.models[:2], strict=True):
        assert one.id == other.id
        assert one.record["depth"] == other.record["depth"]


def order(**changes: Any) -> str:
    options = {"device": "cpu", "threads": 1, "checkpoint_seconds": 0}
    return json.dumps({"cells": [{"dim": 4, "rank": 2, **changes}], "options": options})


def test_a_task_answers_in_json(store: Store, tmp_path: Path) -> None:
    stop = tmp_path / "stop"
    stop.touch()
    assert json.loads(train_task(str(store.path), order(), "me", str(stop))) == {"ending": "stopped"}
    refusal = json.loads(train_task(str(store.path), order(rank=3), "me", str(stop)))
    assert refusal["required"] == "a rank that divides the width 4"
    lost = json.loads(train_task(str(tmp_path / "elsewhere"), order(), "me", str(stop)))
    assert lost["got"] == "no such folder"


def test_a_missing_ray_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match=r"required Ray for --engine ray; .* pip install 'rankfall\[cluster\]'"):
        ENGINES["ray"](Options())


def test_an_unknown_engine_is_refused() -> None:
    with pytest.raises(RequestError, match=f"an engine among {', '.join(ENGINES.names)}; got slurm"):
        ENGINES["slurm"](Options())
