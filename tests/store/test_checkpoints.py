"""Checkpoints: whole or not there, and the composition of a stack is fixed when it begins."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import rankfall
from rankfall.store.checkpoints import Checkpoints

MEMBERS = [{"size": 1}, {"size": 2}]


def save(checkpoints: Checkpoints, chunk: int) -> None:
    history = [{"cell": 0, "loss": 0.1 + chunk, "fresh": None}, {"cell": 1, "loss": 1 / 3, "fresh": None}]
    tensors = {"w": torch.full((2,), float(chunk)), "generator": torch.arange(5, dtype=torch.uint8)}
    checkpoints.save("s", MEMBERS, tensors=tensors, history=history, chunk=chunk, seconds=chunk / 2)


def test_a_checkpoint_comes_back_exactly_and_replaces_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    save(checkpoints, 2)
    found = checkpoints.find("s")
    assert found is not None
    assert found.damage() is None
    assert (found.chunk, found.seconds, list(found.members)) == (2, 1.0, MEMBERS)
    assert torch.equal(found.tensors()["w"], torch.full((2,), 2.0))
    assert found.tensors()["generator"].dtype == torch.uint8
    assert found.history()[0] == {"cell": 0, "loss": 2.1, "fresh": None}
    assert len(list((tmp_path / "s").iterdir())) == 3
    checkpoints.remove("s")
    assert checkpoints.names() == []
    assert list(tmp_path.iterdir()) == []


def test_a_stack_that_only_began_has_members_and_no_state(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    checkpoints.begin("s", MEMBERS)
    found = checkpoints.find("s")
    assert found is not None
    assert (list(found.members), found.chunk, found.files) == (MEMBERS, 0, {})
    save(checkpoints, 3)
    checkpoints.begin("s", MEMBERS)
    kept = checkpoints.find("s")
    assert kept is not None
    assert kept.chunk == 3


def test_a_death_while_forgetting_leaves_only_litter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)
        checkpoints.remove("s")
    (tmp_path / "never-begun").mkdir()
    assert checkpoints.names() == []
    assert len(list(tmp_path.iterdir())) == 2
    save(checkpoints, 1)
    checkpoints.tidy()
    assert {path.name for path in tmp_path.iterdir()} == {"s", "never-begun"}, "one may be about to begin"
    checkpoints.tidy(older_than=0)
    assert {path.name for path in tmp_path.iterdir()} == {"s"}


@pytest.mark.parametrize("pattern", ["state-*", "history-*"])
def test_a_damaged_state_is_not_intact(tmp_path: Path, pattern: str) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    (path,) = (tmp_path / "s").glob(pattern)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    found = checkpoints.find("s")
    assert found is not None
    assert str(path) in str(found.damage())
    path.unlink()
    assert str(path) in str(found.damage())


def test_a_state_of_another_version_does_not_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, 1)
    monkeypatch.setattr(rankfall, "__version__", "99")
    assert checkpoints.find("s") is None
