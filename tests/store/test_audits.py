"""Finished audits are whole or absent, found by what was audited and how, and set aside when damaged."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from rankfall.errors import RequestError
from rankfall.store import audits as module
from rankfall.store.audits import Audits, audit_id

IDENTITY = {"model": "abc", "settings": {"tokens": 8}}
RECORD = {"depth": [{"layer": 0, "unit": {"mu": 0.1 + 0.2}}], "odd": float("nan")}


def test_what_was_written_is_found_under_its_identity(tmp_path: Path) -> None:
    audits = Audits(tmp_path / "audits")
    assert audits.find(audit_id(IDENTITY)) is None
    written = audits.write(IDENTITY, RECORD, 1.5)
    found = Audits(tmp_path / "audits").find(audit_id(IDENTITY))
    assert found == written
    assert found.record == {"depth": RECORD["depth"], "odd": None}
    assert found.seconds == 1.5
    assert audits.ids() == [audit_id(IDENTITY)]
    assert audit_id({**IDENTITY, "model": "abd"}) != audit_id(IDENTITY)
    assert audit_id(dict(reversed(IDENTITY.items()))) == audit_id(IDENTITY)
    assert [path.name for path in audits.path.glob(".*")] == [], "nothing temporary is left"


@pytest.mark.parametrize("harm", ["cut", "changed", "renamed", "emptied"])
def test_a_damaged_audit_is_set_aside_and_counts_as_missing(harm: str, tmp_path: Path) -> None:
    told: list[str] = []
    audits = Audits(tmp_path, told.append)
    id = audits.write(IDENTITY, RECORD, 1.0).id
    path = tmp_path / f"{id}.json"
    if harm == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif harm == "changed":
        path.write_text(path.read_text().replace('"layer": 0', '"layer": 1'))
    elif harm == "renamed":
        id = "0" * 16
        path.rename(tmp_path / f"{id}.json")
    else:
        path.write_text("[]")
    assert audits.find(id) is None
    assert len(told) == 1
    assert "is damaged" in told[0]
    assert [one.name.split(".")[0] for one in (tmp_path / ".damaged").iterdir()] == [id]
    assert audits.ids() == []
    audits.write(IDENTITY, RECORD, 1.0)
    assert audits.find(audit_id(IDENTITY)) is not None


def test_a_large_file_is_read_once_and_again_when_it_changed(tmp_path: Path, monkeypatch) -> None:
    read: list[Path] = []
    checksum = module.checksum
    monkeypatch.setattr(module, "checksum", lambda path: read.append(path) or checksum(path))
    monkeypatch.setattr(module, "SMALL", 4)
    monkeypatch.setattr(module, "SETTLED", -1.0)
    audits, path = Audits(tmp_path / "audits"), tmp_path / "weights"
    path.write_bytes(b"12345678")
    assert audits.digest(path) == Audits(tmp_path / "audits").digest(path) == checksum(path)
    assert len(read) == 1
    # Equal size and date, other contents: what a copy that keeps dates leaves. The inode's own time tells.
    before = path.stat()
    path.write_bytes(b"12345679")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert audits.digest(path) == checksum(path)
    assert len(read) == 2
    small = tmp_path / "small"
    small.write_bytes(b"1")
    for _ in range(2):
        audits.digest(small)
    assert len(read) == 4


def test_a_file_that_has_just_changed_is_not_remembered(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SMALL", 1)
    monkeypatch.setattr(module, "SETTLED", 1e9)
    audits, path = Audits(tmp_path / "audits"), tmp_path / "weights"
    path.write_bytes(b"123")
    audits.digest(path)
    assert not (audits.path / ".digests").exists()


def test_a_damaged_memo_is_read_over(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SMALL", 1)
    monkeypatch.setattr(module, "SETTLED", -1.0)
    audits, path = Audits(tmp_path / "audits"), tmp_path / "weights"
    path.write_bytes(b"123")
    found = audits.digest(path)
    (memo,) = (audits.path / ".digests").iterdir()
    memo.write_text("{")
    assert audits.digest(path) == found
    assert json.loads(memo.read_text())["sha256"] == found


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "store.json").write_text("{}")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "audits.json").write_text('{"version": 99}')
    for name, message in (
        ("file", "required a folder at .*file; got a file"),
        ("runs", r"required a store of audits at .* got a folder with store\.json and no audits\.json"),
        ("new", "of version 1 in .* got version 99"),
    ):
        with pytest.raises(RequestError, match=message):
            Audits(tmp_path / name)
