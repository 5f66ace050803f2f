"""Every kind of file in a store, damaged in every way: one line that names it, and the same numbers in the end."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from soak.lives import contents
from tests.training.conftest import QUICK, tiny
from torch import Tensor

from rankfall.store.claims import Claims
from rankfall.store.files import StorageError
from rankfall.store.identity import identity
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.engines.local import LocalEngine
from rankfall.training.options import Options
from rankfall.training.sweep import SweepRows, sweep

CELLS = [tiny(steps=100), tiny(layers=2, steps=200)]
SINGLE = dataclasses.replace(QUICK, max_stack=1)
DEEPLY_NESTED = b"[" * 100_000


def as_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def unreadable(path: Path) -> None:
    # a link to itself can be read by nobody, the superuser among them
    path.unlink()
    path.symlink_to(path.name)


WAYS: dict[str, Callable[[Path], Any]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "empty": lambda path: path.write_bytes(b""),
    "random bytes": lambda path: path.write_bytes(bytes(range(255, 0, -1))),
    "a list": lambda path: path.write_text("[1, 2]"),
    "an object": lambda path: path.write_text('{"members": [1], "files": 2, "host": 3, "id": 4}'),
    "a number": lambda path: path.write_text("7"),
    "nested": lambda path: path.write_bytes(DEEPLY_NESTED),
    "encoding": lambda path: path.write_bytes("ü\u2028/..".encode("utf-16")),
    "folder": as_folder,
    "unreadable": unreadable,
}
KINDS = {
    "manifest": f"{identity(CELLS[0])}/manifest.json",
    "config": f"{identity(CELLS[0])}/config.json",
    "environment": f"{identity(CELLS[0])}/environment.json",
    "summary": f"{identity(CELLS[0])}/summary.parquet",
    "history": f"{identity(CELLS[0])}/history.parquet",
    "weights": f"{identity(CELLS[0])}/weights.safetensors",
    "index": ".checkpoints/*/checkpoint.json",
    "state": ".checkpoints/*/state-*",
    "rows": ".checkpoints/*/history-*",
    "claim": f".claims/{identity(CELLS[1])}",
    "owner": ".claims/owners/far-1",
}


PLAUSIBLE = {("claim", "truncated"), ("claim", "a number")}
"""Still the name of a process, one that is gone: no damage that could be seen, and the cell is free all the same."""


class Counting:
    """A stack that counts instead of training: everything that is stored, nothing that takes time."""

    def __init__(self, cells: Sequence[Cell], device: str, compile: bool, tf32: bool) -> None:
        self.cells = cells
        self.counted = torch.zeros(1)

    @property
    def chunks_done(self) -> int:
        return int(self.counted)

    @property
    def chunks_total(self) -> int:
        return self.cells[0].chunks

    def advance(self) -> list[dict[str, Any]]:
        self.counted += 1
        return [{"step": 100 * self.chunks_done, "loss": 1 / self.chunks_done, "diverged": False}]

    def state(self) -> dict[str, Tensor]:
        return {"counted": self.counted}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self.counted.copy_(state["counted"])

    def weights(self, index: int) -> dict[str, Tensor]:
        return {"counted": self.counted}

    def summaries(self) -> list[dict[str, Any]]:
        return [{"status": "done", "mse_best": 1 / self.chunks_done}]


class CrashError(Exception):
    pass


class Crashing(Counting):
    def advance(self) -> list[dict[str, Any]]:
        if self.cells[0].layers == 2 and self.chunks_done == 1:
            raise CrashError
        return super().advance()


def count(path: Path, notes: list[str], options: Options = SINGLE) -> SweepRows:
    return sweep(CELLS, path, engine=LocalEngine(options, Counting), note=notes.append)


@pytest.fixture(autouse=True)
def no_memory_to_release(monkeypatch: pytest.MonkeyPatch) -> None:
    # collecting garbage after each stack takes longer than all the rest here
    monkeypatch.setattr("rankfall.training.work.release_memory", lambda device: None)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A store with a finished cell and one that a process of another machine has begun; and what it should become."""
    folder = tmp_path_factory.mktemp("half")
    with pytest.raises(CrashError):
        sweep(CELLS, folder / "store", engine=LocalEngine(SINGLE, Crashing))
    claims = Store(folder / "store").claims_folder
    (claims / "owners" / "far-1").write_text(json.dumps({"host": "far", "pid": 1, "started": "1"}))
    (claims / identity(CELLS[1])).write_text("far-1")
    count(folder / "whole", [])
    return folder / "store", contents(Store(folder / "whole"))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_is_named_and_costs_its_cell_at_most(
    half: tuple[Path, dict[str, Any]], tmp_path: Path, kind: str, way: str
) -> None:
    path = tmp_path / "store"
    shutil.copytree(half[0], path)
    # as after an hour of silence, except where the silence is not to be known
    for sign in path.glob(".claims/owners/*"):
        os.utime(sign, (1e9, 1e9))
    (file,) = path.glob(KINDS[kind])
    WAYS[way](file)
    store = Store(path)
    notes: list[str] = []
    in_run = file.parent == path / identity(CELLS[0])
    assert [str(file) in str(error) for error in store.damaged().values()] == ([True] if in_run else [])
    outcome = count(path, notes)
    assert (outcome.complete, outcome.trained) == (True, 1 + in_run)
    if (kind, way) not in PLAUSIBLE:
        named = [note for note in notes if str(file) in note]
        assert len(named) == 1, notes
        assert "\n" not in named[0]
        assert len(list((path / ".damaged").iterdir())) == 1
    assert contents(store) == half[1]
    assert store.damaged() == {}
    assert [item for item in store.claims_folder.rglob("*") if item.is_file()] == []


@pytest.mark.parametrize("name", [".claims", ".claims/owners", ".checkpoints", ".partial"])
def test_a_file_in_place_of_a_folder(half: tuple[Path, dict[str, Any]], tmp_path: Path, name: str) -> None:
    path = tmp_path / "store"
    shutil.copytree(half[0], path)
    os.utime(path / ".claims" / "owners" / "far-1", (1e9, 1e9))
    shutil.rmtree(path / name)
    (path / name).write_text("in the way")
    notes: list[str] = []
    assert count(path, notes).complete
    assert notes[0].startswith(f"{path / name} is no folder; moved to {path / '.damaged'}")
    assert contents(Store(path)) == half[1]


def test_what_a_sweep_killed_while_tidying_left_is_cleared(
    half: tuple[Path, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    notes: list[str] = []
    shutil.copytree(half[0], path)
    os.utime(path / ".claims" / "owners" / "far-1", (1e9, 1e9))
    with monkeypatch.context() as killed:
        killed.setattr("rankfall.training.engines.local.tidy", lambda store, claims: None)
        count(path, notes)
    (path / ".claims" / identity(CELLS[0])).write_text("far-1")
    assert count(path, notes).trained == 0
    assert [item for item in (path / ".claims").rglob("*") if item.is_file()] == []


def test_a_store_that_is_moved_under_a_sweep_ends_it_in_one_line(tmp_path: Path) -> None:
    class Moving(Counting):
        def weights(self, index: int) -> dict[str, Tensor]:
            (tmp_path / "store").rename(tmp_path / "elsewhere")
            return super().weights(index)

    with pytest.raises(StorageError, match="if it was moved while this ran, run the same command again"):
        sweep(CELLS, tmp_path / "store", engine=LocalEngine(SINGLE, Moving))
    assert not (tmp_path / "store").exists()
    assert count(tmp_path / "elsewhere", []).complete


def test_a_whole_checkpoint_of_something_else_is_set_aside(half: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    class Strange(Counting):
        def restore(self, state: Mapping[str, Tensor]) -> None:
            self.counted += 7
            raise KeyError("other")

    path = tmp_path / "store"
    shutil.copytree(half[0], path)
    os.utime(path / ".claims" / "owners" / "far-1", (1e9, 1e9))
    notes: list[str] = []
    assert sweep(CELLS, path, engine=LocalEngine(SINGLE, Strange), note=notes.append).complete
    assert "holds no state of its stack (KeyError); its cell starts anew" in notes[-1]
    assert contents(Store(path)) == half[1]


def test_who_is_waited_for_is_said_and_can_be_taken_over(half: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    path = tmp_path / "store"
    shutil.copytree(half[0], path)
    (path / ".claims" / "owners" / "far-1").touch()
    told: list[str] = []
    with Claims(path / ".claims", note=told.append) as claims:
        assert not claims.take(identity(CELLS[1]))
        for _ in range(2):
            claims.tell_holders(map(identity, CELLS))
    (line,) = told
    assert line.startswith("waiting for 1 cell claimed by process 1 on far since 2")
    assert "last sign of life 0 s ago; after 60 s of silence they are taken over; " in line
    assert line.endswith("run it with --take-over")
    notes: list[str] = []
    taking = dataclasses.replace(SINGLE, take_over=True)
    assert count(path, notes, taking).trained == 1
    assert notes == ["process 1 on far gave no sign of life for 0 s; the cells that it had claimed are taken over"]
    assert contents(Store(path)) == half[1]


def test_a_living_process_of_this_machine_is_never_taken_over(tmp_path: Path) -> None:
    told: list[str] = []
    with Claims(tmp_path) as theirs, Claims(tmp_path, take_over=True, note=told.append) as ours:
        assert theirs.take("a")
        assert not ours.take("a")
        ours.tell_holders(["a"])
    assert len(told) == 1
    assert "take-over" not in told[0]
    assert f"process {os.getpid()} on this machine since " in told[0]
