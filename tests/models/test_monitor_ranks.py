"""The monitor in distributed runs: one record from all processes, and none of them waits for another."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from rankfall.models.monitor.ranks import Exchange, reduced
from rankfall.models.monitor.sample import MEASURES

WORKER = Path(__file__).with_name("monitor_ranks.py")


def record(value: float, ratio: float = 1.0, place: float = 0.0) -> dict[str, float]:
    return {**dict.fromkeys(MEASURES, value), "norm_ratio": ratio, "longest_token": place}


def test_records_are_joined_by_their_mean_and_the_longest_token() -> None:
    joined = reduced([{"a": record(1.0, 2.0, 5.0)}, {}, {"a": record(4.0, 3.0, 7.0), "b": record(9.0)}])
    assert joined == {"a": {**record(2.5, 3.0, 7.0), "ranks": 2.0}, "b": {**record(9.0), "ranks": 1.0}}


def test_a_process_without_finite_tokens_is_told_beside_the_others() -> None:
    assert reduced([{"a": record(1.0)}, {"a": {"nonfinite": 1.0}}]) == {
        "a": {**record(1.0), "nonfinite": 1.0, "ranks": 2.0}
    }
    assert reduced([{"a": {"nonfinite": 1.0}}]) == {"a": {"nonfinite": 1.0, "ranks": 1.0}}


def exchanges(store: dist.Store, world: int = 2) -> list[Exchange]:
    return [Exchange(store, rank, world) for rank in range(world)]


@pytest.fixture(params=["hash", "file"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> dist.Store:
    return dist.HashStore() if request.param == "hash" else dist.FileStore(str(tmp_path / "store"), 1)


def test_rank_0_takes_what_all_have_given(store: dist.Store) -> None:
    first, second = exchanges(store)
    assert first.take() is None
    first.give(0, {"a": record(1.0)})
    assert first.take() is None
    second.give(0, {"a": record(3.0)})
    assert second.take(now=True) is None
    assert first.take() == (0, {"a": {**record(2.0), "ranks": 2.0}})
    assert first.take(now=True) is None


def test_one_that_measured_nothing_is_not_waited_for(store: dist.Store) -> None:
    first, second = exchanges(store)
    second.give(4, {})
    first.give(4, {"a": record(1.0)})
    assert first.take() == (4, {"a": {**record(1.0), "ranks": 1.0}})


def test_one_that_does_not_come_is_given_up_at_the_next_sample(store: dist.Store) -> None:
    first, _ = exchanges(store)
    first.give(0, {"a": record(1.0)})
    assert first.take() is None
    assert first.take(now=True) == (0, {"a": {**record(1.0), "ranks": 1.0}})
    first.give(1, {"a": record(2.0)})
    assert first.take() == (1, {"a": {**record(2.0), "ranks": 1.0}})


def test_waiting_ends_when_all_are_there(store: dist.Store) -> None:
    first, second = exchanges(store)
    first.give(0, {})
    second.give(0, {"a": record(1.0)})
    assert first.take(now=True, wait=True) == (0, {"a": {**record(1.0), "ranks": 1.0}})


def test_waiting_for_one_that_is_gone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.models.monitor.ranks.LONGEST_WAIT", timedelta(milliseconds=10))
    first, _ = exchanges(dist.HashStore())
    first.give(0, {"a": record(1.0)})
    assert first.take(now=True, wait=True) == (0, {"a": {**record(1.0), "ranks": 1.0}})


def test_a_process_learns_that_nobody_takes_its_records(store: dist.Store) -> None:
    _, alone = exchanges(store)
    assert [alone.give(step, {}) for step in range(4)] == [True, True, False, False]


def test_old_records_are_removed_from_the_store() -> None:
    store = dist.HashStore()
    first, second = exchanges(store)
    for step in range(20):
        first.give(step, {})
        assert second.give(step, {})
        first.take()
    # Two steps of two processes, and the last step that was taken.
    assert store.num_keys() <= 5


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What two processes saw."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [folder / f"{rank}.json" for rank in range(2)]
    runs = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(port), str(file)], stderr=subprocess.PIPE, text=True
        )
        for rank, file in enumerate(files)
    ]
    try:
        said = [run.communicate(timeout=300)[1] for run in runs]
    finally:
        for run in runs:
            run.kill()
    assert [run.returncode for run in runs] == [0, 0], "\n".join(said)[-3000:]
    return [json.loads(file.read_text()) for file in files]


def mean_of_both(seen: list[dict[str, Any]], scene: str, row: int) -> dict[str, float]:
    one, other = (rank[scene]["own"][row] for rank in seen)
    return {name: (one[name] + other[name]) / 2 for name in one if name.endswith(MEASURES)}


@pytest.mark.parametrize("scene", ["replicated", "replicated and compiled", "sharded", "sharded and compiled"])
def test_rank_0_logs_the_means_of_both_processes_once_a_step(seen: list[dict[str, Any]], scene: str) -> None:
    joint = seen[0][scene]["joint"]
    assert [row["step"] for row in joint] == [0, 2, 4]
    assert seen[1][scene]["joint"] == []
    for number, row in enumerate(joint):
        expected = mean_of_both(seen, scene, number)
        assert len(expected) == 3 * len(MEASURES)
        for name, value in expected.items():
            assert row[name] == pytest.approx(value, rel=1e-9), name
        assert {value for name, value in row.items() if name.endswith("/ranks")} == {2.0}
        assert all("step" not in name or name == "step" for name in row)
    assert [rank[scene]["warnings"] for rank in seen] == [[], []]
    assert seen[0][scene]["own"] != seen[1][scene]["own"]


def test_a_short_batch_on_one_rank_is_a_gap_of_that_rank(seen: list[dict[str, Any]]) -> None:
    scene = "a short batch"
    joint = seen[0][scene]["joint"]
    assert [row["step"] for row in joint] == [0, 2, 4]
    assert [row["rankfall/2/ranks"] for row in joint] == [2.0, 1.0, 2.0]
    assert joint[1]["rankfall/2/energy_rank"] == seen[0][scene]["own"][1]["rankfall/2/energy_rank"]
    assert [row["step"] for row in seen[1][scene]["own"]] == [0, 4]
    assert seen[0][scene]["warnings"] == []
    assert all("gap at 0, step 2: sampling failed" in words for words in seen[1][scene]["warnings"])
    assert [rank[scene]["losses"] for rank in seen] == [rank["unwatched"]["losses"] for rank in seen]


def test_a_monitor_on_rank_0_alone_waits_for_nobody(seen: list[dict[str, Any]]) -> None:
    joint = seen[0]["on rank 0"]["joint"]
    assert [row["step"] for row in joint] == [0, 1, 2, 3]
    assert {row["rank0/0/ranks"] for row in joint} == {1.0}


def test_a_monitor_that_rank_0_has_not_says_so(seen: list[dict[str, Any]]) -> None:
    assert seen[1]["on rank 1"]["joint"] == []
    words = seen[1]["on rank 1"]["warnings"]
    assert len(words) == 1
    assert (
        "required a RankMonitor on rank 0, which logs for all; got one on rank 1; make it on every rank" in words[0]
    )


def test_a_sharded_model_compiled_as_a_whole_says_why_not(seen: list[dict[str, Any]]) -> None:
    for rank in seen:
        scene = rank["sharded and compiled as a whole"]
        assert len(scene["losses"]) == 5
        assert scene["joint"] == scene["own"] == []
        assert all("compile its blocks one by one" in words for words in scene["warnings"])
        assert len(scene["warnings"]) == 2
