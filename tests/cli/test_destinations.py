"""Where results may be written: asked before any work, refused in one line, and what is there is never replaced by
something else.
"""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import pytest
from tests.calls import call, refused

import rankfall
from rankfall.cli.output import Outputs
from rankfall.destinations import require_writable_file, require_writable_folder
from rankfall.errors import RequestError

SMALL = ("simulate", "--mask", "causal", "--tokens", "4", "--width", "3", "--layers", "2")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one thing of every awkward kind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("kept")
    (tmp_path / "folder").mkdir()
    (tmp_path / "dangling").symlink_to("nowhere")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "device").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as made:
        made.bind("socket")
    return tmp_path


NOT_FILES = [
    ("folder", "a folder, where a file would be needed"),
    ("dangling", "a link that leads nowhere"),
    ("loop", "too many levels"),
    ("device", "a device"),
    ("fifo", "a pipe"),
    ("socket", "a socket"),
    ("file/below", "a file, where a folder would be needed"),
    ("loop/below", "too many levels"),
    ("fifo/below", "a pipe"),
    ("", "to name a file"),
    (".", "to name a file"),
    ("a\0b", "null characters"),
    ("n" * 300, "file name too long"),
    ("n/" * 3000 + "x", "file name too long"),
]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="only Linux has /proc")
def test_a_place_that_takes_no_files_is_refused_whatever_its_permissions(monkeypatch: pytest.MonkeyPatch) -> None:
    # Who may write everywhere, such as the superuser, learns of it only by trying.
    monkeypatch.setattr(os, "access", lambda *given: True)
    for asked in (require_writable_folder, require_writable_file):
        with pytest.raises(RequestError, match=r"a place to write --out; got /proc: no file can be made there"):
            asked("/proc/x", "--out")


def test_asking_leaves_nothing_behind(tmp_path: Path) -> None:
    for asked in (require_writable_folder, require_writable_file):
        asked(tmp_path / "new" / "one", "--out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("path", "said"), NOT_FILES)
def test_what_cannot_be_a_file_is_refused(place: Path, path: str, said: str) -> None:
    before = sorted(place.iterdir())
    with pytest.raises(RequestError, match=said):
        require_writable_file(path, "--csv")
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize(
    ("path", "said"),
    [("file", "a file, where a folder"), *(one for one in NOT_FILES if one[0] not in ("folder", "."))],
)
def test_what_cannot_be_a_folder_is_refused(place: Path, path: str, said: str) -> None:
    with pytest.raises(
        RequestError, match=said.replace("a file would", "a folder would").replace("name a file", "name a folder")
    ):
        require_writable_folder(path, "--out")


@pytest.mark.parametrize("path", ["new", "deep/er/new", "file"])
def test_what_can_be_a_file_is_let_through(place: Path, path: str) -> None:
    assert require_writable_file(path, "--csv") == Path(path)
    assert not (place / "deep").exists()


def test_a_file_that_may_not_be_written_is_refused(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).name not in ("file", "folder"))
    for path in ("file", "folder/new"):
        with pytest.raises(RequestError, match="not writable"):
            require_writable_file(path, "--csv")


@pytest.mark.parametrize("option", ["--csv", "--plot", "--out"])
@pytest.mark.parametrize("path", ["fifo", "loop", "device", "socket", "dangling"])
def test_refused_before_any_work(
    place: Path, option: str, path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr("rankfall.api.simulate.simulate", never)
    if option == "--plot":
        (place / f"{path}.png").symlink_to(path)
        path += ".png"
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    status, out, err = call(capsys, *SMALL, option, path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert f"a place to write {option}" in err
    assert stat.S_IFMT(os.lstat(path).st_mode) == kind


def test_the_ending_of_a_picture_is_checked_first(place: Path) -> None:
    with pytest.raises(RequestError, match=r"--plot to end in one of \.png"):
        Outputs(plot=Path("new.bmp"))


def test_parents_are_made_and_links_to_files_are_followed(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "link.csv").symlink_to("file")
    status, _, err = call(capsys, *SMALL, "--csv", "link.csv", "--plot", "deep/er/new.png", "--out", "deep/report")
    assert status == 0, err
    assert (place / "link.csv").is_symlink()
    assert (place / "file").read_text().startswith("mask,layer")
    assert (place / "deep/er/new.png").exists()
    assert (place / "deep/report/report.html").exists()


@pytest.mark.parametrize("path", ["fifo", "device", "dangling", "loop", "socket", "folder"])
def test_runs_never_replaces_what_is_no_file(place: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    rankfall.sweep("smoke", store="runs", dry_run=True)
    kind = stat.S_IFMT(os.lstat(path).st_mode)
    status, _, err = call(capsys, "runs", "--store", str(place / "runs"), "--csv", path)
    assert (status, err.count("\n")) == (2, 1)
    assert "a place to write --csv" in err
    assert stat.S_IFMT(os.lstat(path).st_mode) == kind


def test_a_failed_write_loses_nothing(
    place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object, **options: object) -> None:
        raise OSError(28, "No space left on device", "report.html")

    monkeypatch.setattr("rankfall.report.page.write", full)
    status, out, err = call(capsys, *SMALL, "--json", "--out", "report")
    assert status == 2
    assert out.startswith('{"schema"')
    assert out.count("\n") == 1
    assert "no space left on device (report.html)" in err


@pytest.mark.parametrize("verb", [("compare", "one", "two"), ("audit", "one", "two")])
@pytest.mark.parametrize("path", ["file", "fifo", "device", "dangling", "loop", "socket", "fifo/below"])
def test_a_store_of_audits_is_checked_before_any_work(
    place: Path, verb: tuple[str, ...], path: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*arguments: object, **options: object) -> None:
        raise AssertionError("work was done")

    monkeypatch.setattr("rankfall.models.series.work.run_series", never)
    before = sorted(place.iterdir())
    status, out, err = call(capsys, *verb, "--store", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "the store" in err
    assert sorted(place.iterdir()) == before


@pytest.mark.parametrize("path", ["fifo", "device", "zero", "large", "folder", "dangling", "loop"])
def test_a_layer_to_polish_is_a_plain_file(place: Path, path: str, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "zero").symlink_to("/dev/zero")
    with (place / "large").open("wb") as file:
        file.truncate(1 << 40)
    status, out, err = call(capsys, "equilibrium", "--polish", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "JSON file" in err


@pytest.mark.parametrize("words", [("--out", ""), ("--out=",), ("--csv", ""), ("--plot=",)])
def test_an_empty_name_is_not_the_working_folder(
    words: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in `--out "$NOBODY_SET_THIS"`."""
    monkeypatch.chdir(tmp_path)
    said = refused(capsys, "simulate", "--mask", "causal", "--tokens", "3", "--dim", "2", "--layers", "2", *words)
    assert f"required {words[0].rstrip('=')} to have a value; got an empty one" in said
    assert list(tmp_path.iterdir()) == []
