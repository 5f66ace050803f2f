"""The lock between processes: one handle has it, and a death gives it back."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rankfall.errors import RequestError
from rankfall.store.lock import FileLock

PAST = 0.0
HOLDER = """
import sys
from pathlib import Path
from rankfall.store.lock import FileLock
lock = FileLock(Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.read()
"""


def test_one_handle_has_it(tmp_path: Path) -> None:
    first, second = (FileLock(tmp_path / "folder" / "turn.lock") for _ in range(2))
    assert first.take(until=PAST)
    assert not second.take(until=PAST)
    second.give()
    assert not second.take(until=PAST), "who does not have it cannot give it"
    first.give()
    assert second.take(until=PAST)
    assert not first.take(until=PAST)
    second.close()
    assert first.take(until=PAST)
    first.close()


def test_as_a_context_it_is_had_inside_alone(tmp_path: Path) -> None:
    other = FileLock(tmp_path / "turn.lock")
    with FileLock(tmp_path / "turn.lock"):
        assert not other.take(until=PAST)
    assert other.take(until=PAST)
    other.close()


def test_another_process_has_it_until_it_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "turn.lock"
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    mine = FileLock(path)
    try:
        assert holder.stdout.readline() == "True\n"
        assert not mine.take(until=PAST)
    finally:
        holder.kill()
        holder.communicate()
    assert mine.take(until=PAST)
    mine.close()


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RequestError, match=r"turn\.lock"):
        FileLock(tmp_path / "file" / "turn.lock")
