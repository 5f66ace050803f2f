"""Sweeps of real, tiny models: whatever interrupts them, they end with the numbers of an unbroken run."""

from __future__ import annotations

import dataclasses
import os
import resource
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from soak.lives import contents
from tests.training.conftest import QUICK, tiny

from rankfall.store.checkpoints import Checkpoints
from rankfall.store.files import StorageError
from rankfall.store.identity import identity
from rankfall.store.results import export_results, import_results
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.engines.local import LocalEngine
from rankfall.training.plan import stack_name
from rankfall.training.stack import Stack
from rankfall.training.sweep import sweep

CELLS = [tiny(rank=rank, seed=seed) for rank in (1, 4) for seed in (0, 1)] + [tiny(layers=2, steps=100)]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Store:
    store = Store(tmp_path_factory.mktemp("unbroken") / "store")
    assert sweep(CELLS, store, options=QUICK).complete
    return store


class Power:
    """Builds stacks that do something dramatic when a number of chunks has been trained."""

    def __init__(self, chunks: int, act: Any) -> None:
        self.left, self.act, self.built = chunks, act, []

    def __call__(self, cells: Sequence[Cell], device: str, compile: bool, tf32: bool) -> Stack:
        power = self
        self.built.append(len(cells))

        class Watched(Stack):
            def advance(self) -> list[dict[str, Any]]:
                power.left -= 1
                if power.left == 0:
                    power.act()
                return super().advance()

        return Watched(cells, device, compile, tf32)


class CrashError(Exception):
    pass


def crash() -> None:
    raise CrashError


def forbidden() -> Power:
    def build() -> None:
        raise AssertionError("nothing was left to train")

    return Power(1, build)


def test_rows_come_in_the_order_of_the_cells(unbroken: Store) -> None:
    outcome = sweep(list(reversed(CELLS)), unbroken, engine=LocalEngine(QUICK, forbidden()))
    assert [row["id"] for row in outcome.rows] == [identity(cell) for cell in reversed(CELLS)]
    assert (outcome.trained, outcome.complete) == (0, True)
    for row in outcome.rows:
        assert row["status"] == "done"
        assert 0 < row["mse_best"] <= row["mse_final"]
        assert row["seconds"] > 0
        assert (row["device"], row["feed_forward"]) == ("cpu", 4)


def test_the_store_is_left_tidy(unbroken: Store) -> None:
    assert list(unbroken.partial_folder.iterdir()) == []
    assert list(unbroken.checkpoints_folder.iterdir()) == []
    assert [path for path in unbroken.claims_folder.rglob("*") if path.is_file()] == []
    history = unbroken.run(CELLS[0]).history().to_pylist()
    assert [row["step"] for row in history] == [100, 200]


@pytest.mark.parametrize("chunks", [2, 3])
def test_after_a_crash_the_numbers_are_those_of_an_unbroken_run(store: Store, unbroken: Store, chunks: int) -> None:
    with pytest.raises(CrashError):
        sweep(CELLS, store, engine=LocalEngine(QUICK, Power(chunks, crash)))
    again = Power(99, crash)
    assert sweep(CELLS, store, engine=LocalEngine(QUICK, again)).complete
    assert 99 - again.left == 3 - (chunks - 1), "chunks that were saved are not trained again"
    assert contents(store) == contents(unbroken)


def test_ctrl_c_saves_and_the_next_sweep_goes_on(store: Store, unbroken: Store) -> None:
    notes: list[str] = []
    stop = Power(1, lambda: os.kill(os.getpid(), signal.SIGINT))
    slow_saver = LocalEngine(QUICK.__class__(device="cpu", checkpoint_seconds=1e9), stop)
    outcome = sweep(CELLS, store, engine=slow_saver, note=notes.append)
    assert not outcome.complete
    assert {row["status"] for row in outcome.rows} == {"missing"}
    assert notes == ["stopping after this chunk; Ctrl-C again to stop at once"]
    (name,) = Checkpoints(store.checkpoints_folder).names()
    saved = Checkpoints(store.checkpoints_folder).find(name)
    assert saved is not None
    assert (saved.chunk, saved.damage()) == (1, None)
    assert not outcome.out_of_time
    assert sweep(CELLS, store, options=QUICK).complete
    assert contents(store) == contents(unbroken)


def test_a_time_limit_saves_and_the_next_sweep_goes_on(
    store: Store, unbroken: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is counted by its readings: one at the start, one before the stack, one after each chunk."""
    readings = iter(range(100))
    monkeypatch.setattr("rankfall.training.sweep.monotonic", lambda: float(next(readings)))
    saver = LocalEngine(QUICK.__class__(device="cpu", checkpoint_seconds=1e9))
    outcome = sweep(CELLS, store, engine=saver, seconds=2.0)
    assert (outcome.complete, outcome.out_of_time, outcome.trained) == (False, True, 0)
    (name,) = Checkpoints(store.checkpoints_folder).names()
    saved = Checkpoints(store.checkpoints_folder).find(name)
    assert saved is not None
    assert (saved.chunk, saved.damage()) == (1, None)
    last = sweep(CELLS, store, options=QUICK, seconds=1e9)
    assert (last.complete, last.out_of_time) == (True, False)
    assert contents(store) == contents(unbroken)


def test_a_full_disk_stops_the_sweep_and_loses_nothing(store: Store) -> None:
    small, large = tiny(), tiny(feed_forward=256)
    sweep([small], store, options=QUICK)
    before = {path for path in store.path.rglob("*") if path.is_file()}
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (12_000, hard))
    try:
        with pytest.raises(StorageError, match=r"required room on the disk .*; got File too large; free some room"):
            sweep([small, large], store, options=QUICK)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    begun = store.checkpoints_folder / stack_name([large]) / "checkpoint.json"
    assert {path for path in store.path.rglob("*") if path.is_file()} == before | {begun}
    assert sweep([small, large], store, options=QUICK).trained == 1


def test_a_damaged_checkpoint_starts_anew_and_says_so(store: Store, unbroken: Store) -> None:
    with pytest.raises(CrashError):
        sweep(CELLS, store, engine=LocalEngine(QUICK, Power(2, crash)))
    (state,) = store.checkpoints_folder.rglob("state-*")
    state.write_bytes(state.read_bytes()[:-3] + b"abc")
    notes: list[str] = []
    assert sweep(CELLS, store, options=QUICK, note=notes.append).complete
    assert len(notes) == 1
    assert f"{state} is damaged (another checksum); its 4 cells start anew, what was there is kept in " in notes[0]
    (kept,) = (store.path / ".damaged").iterdir()
    assert (kept / state.name).read_bytes().endswith(b"abc")
    assert contents(store) == contents(unbroken)


def test_a_death_between_two_writes_loses_neither(
    store: Store, unbroken: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, calls = Store.write, []

    def dying(self: Store, *arguments: Any, **parts: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            crash()
        return write(self, *arguments, **parts)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", dying)
        with pytest.raises(CrashError):
            sweep(CELLS, store, options=QUICK)
    assert len(store.ids()) == 2
    again = Power(99, crash)
    sweep(CELLS, store, engine=LocalEngine(QUICK, again))
    assert again.built == [4, 1], "the stack goes on whole, for the sake of equal numbers"
    assert contents(store) == contents(unbroken)


def test_a_diverged_cell_is_finished_and_harms_no_other(store: Store) -> None:
    wild = tiny(learning_rate=1e30)
    calm = tiny(learning_rate=0.01)
    rows = {row["learning_rate"]: row for row in sweep([wild, calm], store, options=QUICK).rows}
    assert rows[1e30]["status"] == "diverged"
    assert rows[0.01]["status"] == "done"
    again = sweep([wild, calm], store, engine=LocalEngine(QUICK, forbidden()))
    assert again.trained == 0


def test_a_stack_of_nothing_but_diverged_cells_ends_early(store: Store) -> None:
    cell = tiny(learning_rate=1e30, steps=100_000)
    (row,) = sweep([cell], store, options=QUICK).rows
    assert row["status"] == "diverged"
    assert row["steps_done"] < 1000


def test_a_sweep_goes_on_from_committed_results(unbroken: Store, store: Store, tmp_path: Path) -> None:
    export_results((unbroken.run(cell) for cell in CELLS[:4]), tmp_path / "results")
    import_results(store, tmp_path / "results")
    builds = Power(99, crash)
    outcome = sweep(CELLS, store, engine=LocalEngine(QUICK, builds))
    assert (builds.built, outcome.trained) == ([1], 1)
    assert {row["id"]: row["mse_best"] for row in outcome.rows} == {
        run.id: run.summary()["mse_best"] for run in unbroken.runs()
    }


def test_weights_can_be_had_of_imported_cells(unbroken: Store, store: Store, tmp_path: Path) -> None:
    export_results(unbroken.runs(), tmp_path / "results")
    import_results(store, tmp_path / "results")
    options = QUICK.__class__(device="cpu", threads=1, weights=True)
    assert sweep(CELLS, store, options=options).complete
    assert contents(store) == contents(unbroken)


def test_progress_rises_to_one(store: Store) -> None:
    seen: list[tuple[str, float]] = []
    cells = [tiny(), tiny(layers=2, steps=100)]
    sweep(cells, store, options=QUICK, progress=lambda what, share: seen.append((what, share)))
    shares = [share for _, share in seen]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, pytest.approx(1.0))
    assert seen[-1][0].startswith(f"2 of 2 cells; {cells[1].label} at step 100 of 100, loss ")


@pytest.mark.parametrize("name", ["summary.parquet", "manifest.json"])
def test_a_damaged_run_is_set_aside_and_its_cell_alone_trained_anew(store: Store, name: str) -> None:
    single = dataclasses.replace(QUICK, max_stack=1)
    cells = [tiny(), tiny(seed=1)]
    sweep(cells, store, options=single)
    before = contents(store)
    path = store.path / identity(cells[0]) / name
    cut = path.read_bytes()[:-10]
    path.write_bytes(cut)
    notes: list[str] = []
    builds = Power(99, crash)
    outcome = sweep(cells, store, engine=LocalEngine(single, builds), note=notes.append)
    assert (builds.built, outcome.trained) == ([1], 1)
    (kept,) = (store.path / ".damaged").iterdir()
    assert (kept / name).read_bytes() == cut
    (note,) = notes
    assert note.startswith(f"required {path} ")
    assert note.endswith(f"run moved to {kept}, its cell is trained anew")
    assert contents(store) == before
