"""Atomic files on a disk that runs full: one clear line, no litter, nothing that was there before is lost."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from tests.store.conftest import Setting, write

from rankfall.store.checkpoints import Checkpoints
from rankfall.store.files import StorageError, write_atomically, write_bytes
from rankfall.store.store import Store

# newer Pythons warn of forking with threads about; these children only write a file
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

LIMIT = 20_000
LARGE = {"matrix": torch.zeros(LIMIT)}


def under_a_size_limit(action: Callable[[], object]) -> str:
    """What `action` raised in a child process for which the system refuses files above `LIMIT` bytes."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
            action()
            answer = "nothing"
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read().decode()
    os.waitpid(child, 0)
    return answer


def everything_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def test_a_run_that_finds_no_room_leaves_no_trace(store: Store) -> None:
    write(store, Setting(size=1))
    before = everything_under(store.path)
    answer = under_a_size_limit(lambda: write(store, Setting(size=2), weights=LARGE))
    assert answer.startswith("StorageError: required room on the disk to write ")
    assert "free some room and run the same command again: everything finished is kept" in answer
    assert everything_under(store.path) == before
    assert store.run(Setting(size=1)).summary()["size"] == 1


def test_a_checkpoint_that_finds_no_room_leaves_the_one_before(store: Store) -> None:
    checkpoints = Checkpoints(store.checkpoints_folder)
    members = [{"size": 1}]
    small = {"matrix": torch.ones(3)}
    checkpoints.save("s", members, tensors=small, history=[{"chunk": 1}], chunk=1, seconds=1.0)
    before = everything_under(store.path)
    answer = under_a_size_limit(
        lambda: checkpoints.save("s", members, tensors=LARGE, history=[{"chunk": 1}], chunk=2, seconds=2.0)
    )
    assert answer.startswith("StorageError: required room on the disk")
    assert everything_under(store.path) == before
    kept = checkpoints.find("s")
    assert kept is not None
    assert kept.damage() is None
    assert kept.chunk == 1


@pytest.mark.parametrize(
    ("number", "message"),
    [
        (errno.ENOSPC, "required room on the disk to write .*; got No space left on device; free some room"),
        (errno.EDQUOT, "required room on the disk to write .*; got Disk quota exceeded; free some room"),
        (errno.EROFS, "required leave to write .*; got Read-only file system; choose a folder"),
    ],
)
def test_the_disk_s_refusals_are_one_line_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, message: str
) -> None:
    def refuse(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    write_bytes(tmp_path / "file", b"before")
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(StorageError, match=message):
        write_bytes(tmp_path / "file", b"after")
    assert (tmp_path / "file").read_bytes() == b"before"
    assert everything_under(tmp_path) == {"file"}


def test_other_errors_pass_unchanged(tmp_path: Path) -> None:
    def fill(beside: Path) -> None:
        raise OSError(errno.ETXTBSY, "busy")

    with pytest.raises(OSError, match="busy"):
        write_atomically(tmp_path / "file", fill)


def test_a_folder_that_is_gone_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match=r"a folder to write .*; got No such file or directory; make the folder"):
        write_bytes(tmp_path / "no" / "folder", b"x")


ALONE = """
import os, pathlib, sys
from rankfall.store.files import read_records, write_records

def threads():
    names = [path.read_text().strip() for path in pathlib.Path("/proc/self/task").glob("*/comm")]
    return len([name for name in names if name != "jemalloc_bg_thd"])

path = pathlib.Path(sys.argv[1])
write_records(path, [{"a": 1, "b": "x"}, {"a": None, "b": "y"}])
before = threads()
print(read_records(path) == [{"a": 1, "b": "x"}, {"a": None, "b": "y"}], threads() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads as Linux lists them")
def test_reading_a_table_leaves_no_thread_behind(tmp_path: Path) -> None:
    """One of Arrow's that drops the file while the interpreter ends takes the whole process with it."""
    done = subprocess.run(
        [sys.executable, "-c", ALONE, str(tmp_path / "table.parquet")], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["True", "0"]
