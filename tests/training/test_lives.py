"""Deaths and company: sweeps killed twenty times, and two sweeps on one store."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.training.conftest import contents

from rankfall.store.store import Store

PROGRAM = Path(__file__).with_name("lives.py")


def live(*arguments: object) -> dict[str, Any]:
    # newer Pythons warn of forking with threads about; nothing in these children waits for a thread of the parent
    command = [sys.executable, "-W", "ignore::DeprecationWarning", str(PROGRAM), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, dict[str, Any]]:
    path = tmp_path_factory.mktemp("shared") / "store"
    answer = live("share", path, 2)
    return Store(path, create=False), answer


def test_two_processes_share_a_store_and_train_nothing_twice(shared: tuple[Store, dict[str, Any]]) -> None:
    store, answer = shared
    assert answer["statuses"] == [0, 0]
    assert sum(answer["trained"]) == 6
    assert min(answer["trained"]) > 0, "both had something to do"
    assert len(store.ids()) == 6


@pytest.mark.slow
def test_killed_twenty_times_the_table_is_the_same(shared: tuple[Store, dict[str, Any]], tmp_path: Path) -> None:
    answer = live("kill", tmp_path / "store", 20, 5)
    assert answer == {"survived": 0, "status": 0}
    killed = Store(tmp_path / "store", create=False)
    assert contents(killed) == contents(shared[0])
    assert list(killed.checkpoints_folder.iterdir()) == []
    assert [path for path in killed.claims_folder.rglob("[!.]*") if path.is_file()] == []
    assert killed.damaged() == {}
