"""Claims: one worker per cell, the dead are known, and a retried worker is the one it replaces."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

from rankfall.store.claims import Claims
from rankfall.store.owners import process_start

# newer Pythons warn of forking with threads about; these children only touch a file
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


def test_a_name_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with Claims(tmp_path) as ours, Claims(tmp_path) as theirs:
        assert ours.take_all(["a", "b"])
        assert not theirs.take("a")
        assert theirs.holder("a") == ours.owner.token
        assert [name for name in "abc" if theirs.take(name)] == ["c"]
        ours.release(["a"])
        assert theirs.take("a")
    assert [path.name for path in tmp_path.iterdir()] == ["owners"]
    assert list((tmp_path / "owners").iterdir()) == []


def test_all_or_none(tmp_path: Path) -> None:
    with Claims(tmp_path) as ours, Claims(tmp_path) as theirs:
        assert theirs.take("b")
        assert not ours.take_all(["c", "b", "a"])
        assert ours.held == set()
        assert theirs.take("a")


def test_the_claim_of_a_killed_process_is_taken_at_once(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        Claims(tmp_path).take("a")
        os.write(writer, b"x")
        signal.pause()
    os.read(reader, 1)
    with Claims(tmp_path) as ours:
        taken_while_alive = ours.take("a")
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        assert not taken_while_alive
        assert ours.take("a")
        assert ours.holder("a") == ours.owner.token


def elsewhere(folder: Path, silent_for: float) -> None:
    """A claim on `a` by a process of another machine."""
    (folder / "owners").mkdir()
    owner = folder / "owners" / "far-1"
    owner.write_text(json.dumps({"host": "far", "pid": 1, "started": "1"}))
    now = owner.stat().st_mtime
    os.utime(owner, (now - silent_for, now - silent_for))
    (folder / "a").write_text("far-1")


def test_a_process_of_another_machine_is_judged_by_its_silence(tmp_path: Path) -> None:
    elsewhere(tmp_path, silent_for=30)
    with Claims(tmp_path, patience=60) as patient:
        assert not patient.take("a")
    with Claims(tmp_path, patience=20) as hasty:
        assert hasty.take("a")


def test_a_retried_task_goes_on_under_its_own_name(tmp_path: Path) -> None:
    elsewhere(tmp_path, silent_for=0)
    with Claims(tmp_path, token="far-1") as again:
        assert again.take("a")
    assert not (tmp_path / "a").exists()


def test_the_dead_are_cleared_away_and_the_living_left(tmp_path: Path) -> None:
    elsewhere(tmp_path, silent_for=1e6)
    with Claims(tmp_path) as ours, Claims(tmp_path) as theirs:
        assert theirs.take("b")
        (tmp_path / "owners" / ".half.tmp").touch()
        ours.tidy(older_than=0)
        assert theirs.holder("b") == theirs.owner.token
        assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "owners"]
        assert {path.name for path in (tmp_path / "owners").iterdir()} == {ours.owner.token, theirs.owner.token}


def test_a_claim_lost_to_a_rival_is_not_removed(tmp_path: Path) -> None:
    with Claims(tmp_path) as ours:
        assert ours.take("a")
        (tmp_path / "a").write_text("rival")
        ours.release(["a"])
        assert (tmp_path / "a").read_text() == "rival"


def test_a_process_number_used_again_is_another_process() -> None:
    own = process_start(os.getpid())
    assert own is not None
    assert process_start(os.getpid()) == own
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    assert process_start(child) is None, "a zombie does not work any more"
    os.waitpid(child, 0)
    assert process_start(child) is None


def test_stamps_of_the_future_do_not_keep_a_dead_process_alive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a clock was set back: what counts is for how long the stamp did not move while we looked."""
    elsewhere(tmp_path, silent_for=-1e6)
    seconds = [0.0]
    monkeypatch.setattr("rankfall.store.owners.time.monotonic", lambda: seconds[0])
    with Claims(tmp_path, patience=60) as ours:
        assert not ours.take("a")
        seconds[0] = 59.0
        assert not ours.take("a")
        (tmp_path / "owners" / "far-1").touch()
        seconds[0] = 118.0
        assert not ours.take("a"), "it gave a sign meanwhile"
        seconds[0] = 179.0
        assert ours.take("a")


def test_an_owner_whose_file_was_set_aside_signs_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.store.owners.PULSE", 0.001)
    claims = tmp_path / ".claims"
    with Claims(claims) as ours, Claims(claims) as theirs:
        assert ours.take("a")
        path = claims / "owners" / ours.owner.token
        beats = ours.owner._pulse
        assert beats is not None
        path.write_text("[]")
        assert theirs.holder("a") is None
        while not path.exists() and beats.is_alive():
            pass
        assert theirs.holder("a") == ours.owner.token
    assert list((claims / "owners").iterdir()) == []
