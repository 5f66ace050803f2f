"""The store: a run is complete or does not count, and what is complete stays."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from tests.store.conftest import Setting, write

from rankfall.errors import RequestError
from rankfall.store.checkpoints import Checkpoints
from rankfall.store.claims import Claims
from rankfall.store.files import StorageError
from rankfall.store.identity import identity
from rankfall.store.run import DamagedRunError
from rankfall.store.store import Store

FILES = {
    "config.json",
    "environment.json",
    "history.parquet",
    "manifest.json",
    "summary.parquet",
    "weights.safetensors",
}


def test_a_run_comes_back_as_it_was_written(store: Store) -> None:
    id = write(store, Setting())
    run = store.run(Setting())
    assert {path.name for path in (store.path / id).iterdir()} == FILES
    assert run.config == {"name": "small", "size": 4, "rate": 0.01, "extra": None}
    assert run.summary() == {"id": id, "status": "done", "name": "small", "size": 4, "error": 4 / 3}
    assert run.history().to_pylist()[2] == {"id": id, "chunk": 2, "loss": 1 / 5}
    assert torch.equal(run.weights()["matrix"], torch.arange(4.0))
    assert run.environment["commit"] == "abc"
    assert not any(store.partial_folder.iterdir())


def test_missing_keeps_the_order_and_knows_parts(store: Store) -> None:
    write(store, Setting(size=2), weights=None)
    settings = [Setting(size=3), Setting(size=2), Setting(size=1)]
    assert store.missing(settings) == [settings[0], settings[2]]
    assert store.missing(settings, parts=("weights.safetensors",)) == settings
    assert store.ids() == [identity(Setting(size=2))]


def test_without_its_manifest_a_run_does_not_count_and_is_kept_beside_its_successor(store: Store) -> None:
    id = write(store, Setting())
    (store.path / id / "manifest.json").unlink()
    assert not store.has(id)
    assert store.ids() == []
    write(store, Setting(), summary={"status": "done", "error": 5.0})
    assert store.run(Setting()).summary()["error"] == 5.0
    (kept,) = (store.path / ".damaged").iterdir()
    assert kept.name.startswith(id)
    assert {path.name for path in kept.iterdir()} == FILES - {"manifest.json"}


STRANGER = {
    name: {"bytes": 1, "sha256": "0"} for name in ("config.json", "environment.json", "summary.parquet", "../x")
}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", "no readable JSON"),
        ('{"id": "x", "fi', "no readable JSON"),
        ("[" * 100_000, "no readable JSON"),
        ("[]", "JSON of a list"),
        ('{"id": "x", "source": "trained"}', "JSON that is no manifest"),
        ('{"id": "x", "source": "trained", "files": {}}', "too few"),
        (json.dumps({"id": "x", "source": "trained", "files": STRANGER}), r"'\.\./x'"),
    ],
)
def test_half_a_manifest_is_damage_and_no_absence(store: Store, text: str, found: str) -> None:
    id = write(store, Setting())
    (store.path / id / "manifest.json").write_text(text)
    with pytest.raises(DamagedRunError, match=rf"{id}/manifest.json to list a run's files; got .*{found}"):
        store.find(id)
    assert store.missing([Setting()]) == [Setting()]
    assert list(store.damaged()) == [id]
    assert (list(store.runs()), store.names()) == ([], [id])


def test_a_copy_under_another_name_is_no_run(store: Store) -> None:
    id = write(store, Setting())
    shutil.copytree(store.path / id, store.path / "notes")
    shutil.copytree(store.path / id, store.path / ("0" * 16))
    assert store.ids() == [id]
    assert list(store.damaged()) == ["0" * 16], "what is not named like a run is somebody's own"


def test_nothing_appears_where_a_store_was_moved_away(store: Store, tmp_path: Path) -> None:
    store.path.rename(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="a folder to write"):
        write(store, Setting())
    with pytest.raises(StorageError, match="a folder to write"):
        Claims(store.claims_folder).take("a")
    with pytest.raises(StorageError, match="a folder to write"):
        Checkpoints(store.checkpoints_folder).begin("s", [{"size": 1}])
    assert not store.path.exists()


def test_a_complete_run_is_not_overwritten_unless_by_a_fuller_one(store: Store) -> None:
    write(store, Setting(), weights=None, summary={"error": 1.0})
    write(store, Setting(), weights=None, summary={"error": 2.0})
    assert store.run(Setting()).summary()["error"] == 1.0
    write(store, Setting(), summary={"error": 3.0})
    assert store.run(Setting()).summary()["error"] == 3.0


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


@pytest.mark.parametrize("name", ["summary.parquet", "history.parquet", "config.json"])
def test_a_changed_file_is_refused_with_the_way_out(store: Store, name: str) -> None:
    id = write(store, Setting())
    flip_a_byte(store.path / id / name)
    assert store.missing([Setting()]) == [Setting()]
    with pytest.raises(DamagedRunError, match=rf"{name} as its manifest .* another checksum; .*--set-aside"):
        raise store.damaged()[id]


def test_changed_weights_are_found_when_they_are_read(store: Store) -> None:
    id = write(store, Setting())
    flip_a_byte(store.path / id / "weights.safetensors")
    assert store.has(id)
    with pytest.raises(DamagedRunError, match="another checksum"):
        store.run(Setting()).weights()
    assert list(store.damaged()) == [id]


def test_a_cut_or_vanished_file_is_refused(store: Store) -> None:
    id = write(store, Setting())
    summary = store.path / id / "summary.parquet"
    summary.write_bytes(summary.read_bytes()[:-7])
    assert not store.has(id)
    with pytest.raises(DamagedRunError, match=r"bytes instead of"):
        store.run(Setting()).summary()
    summary.unlink()
    assert not store.has(id)
    with pytest.raises(DamagedRunError, match="no such file"):
        store.run(Setting()).summary()


def test_a_run_set_aside_counts_as_missing_and_is_kept(store: Store) -> None:
    id = write(store, Setting())
    flip_a_byte(store.path / id / "summary.parquet")
    kept = store.set_aside(id)
    assert kept is not None
    assert store.set_aside(id) is None, "somebody was quicker"
    assert store.missing([Setting()]) == [Setting()]
    assert {path.name for path in kept.iterdir()} == FILES
    assert store.damaged() == {}


def test_a_store_of_another_version_is_refused(store: Store) -> None:
    (store.path / "store.json").write_text(json.dumps({"version": 7}))
    with pytest.raises(RequestError, match=r"store of version 1 .* got version 7; open it with the rankfall"):
        Store(store.path)
    (store.path / "store.json").write_text("not json")
    with pytest.raises(RequestError, match="none that can be read"):
        Store(store.path)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(RequestError, match=r"a folder with thesis.tex and no store.json"):
        Store(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]
    with pytest.raises(RequestError, match=r"a folder at .* got a file"):
        Store(tmp_path / "thesis.tex")


def test_reading_makes_no_store(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="no such folder; `rankfall sweep"):
        Store(tmp_path / "none", create=False)
    assert not (tmp_path / "none").exists()


def test_what_a_killed_writer_left_is_cleared(store: Store) -> None:
    write(store, Setting())
    (store.partial_folder / "0123.abcd").mkdir()
    store.tidy()
    assert len(list(store.partial_folder.iterdir())) == 1, "a writer may still be at it"
    store.tidy(older_than=0)
    assert list(store.partial_folder.iterdir()) == []
    assert store.has(identity(Setting()))


def test_a_mark_written_between_two_looks_is_no_stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process may finish making the store after we saw no mark and before we list the folder."""
    Store(tmp_path / "store")
    seen = Path.exists
    looks = iter([False])

    def late(path: Path, **options: bool) -> bool:
        return next(looks, True) if path.name == "store.json" else seen(path, **options)

    monkeypatch.setattr(Path, "exists", late)
    assert Store(tmp_path / "store").ids() == []
