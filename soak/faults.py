"""What is done to a store and to the system below it: no room, no leave, another clock, another place, damage."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

DAMAGES: dict[str, Callable[[Path, random.Random], None]] = {}


def _damage(function: Callable[[Path, random.Random], None]) -> Callable[[Path, random.Random], None]:
    DAMAGES[function.__name__] = function
    return function


@_damage
def truncated(path: Path, chance: random.Random) -> None:
    path.write_bytes(path.read_bytes()[: chance.randrange(max(1, path.stat().st_size))])


@_damage
def empty(path: Path, chance: random.Random) -> None:
    path.write_bytes(b"")


@_damage
def random_bytes(path: Path, chance: random.Random) -> None:
    path.write_bytes(chance.randbytes(max(1, path.stat().st_size)))


@_damage
def other_json(path: Path, chance: random.Random) -> None:
    path.write_text(
        json.dumps(chance.choice([[], 7, "text", None, {}, [[]], {"id": 3, "files": []}, {"members": 1}]))
    )


@_damage
def other_encoding(path: Path, chance: random.Random) -> None:
    path.write_bytes("\ufeffüöä\u2028".encode("utf-16"))


@_damage
def folder(path: Path, chance: random.Random) -> None:
    path.unlink()
    path.mkdir()


@_damage
def link_to_itself(path: Path, chance: random.Random) -> None:
    """Unreadable for everybody, the superuser among them."""
    path.unlink()
    path.symlink_to(path.name)


@_damage
def gone(path: Path, chance: random.Random) -> None:
    path.unlink()


def damage_something(store: Path, chance: random.Random) -> str | None:
    """Damage one file of the store, not the mark that makes it one, in one way; say which and how."""
    files = [path for path in store.rglob("*") if path.is_file() and path.name != "store.json"]
    files = sorted(path for path in files if ".damaged" not in path.parts)
    if not files:
        return None
    # by kind of file first: else most are of finished runs
    kinds: dict[str, list[Path]] = {}
    for path in files:
        inside = path.relative_to(store).parts
        kinds.setdefault(path.name.partition("-")[0] if inside[0] != ".claims" else inside[-2], []).append(path)
    path = chance.choice(kinds[chance.choice(sorted(kinds))])
    name = chance.choice(sorted(DAMAGES))
    DAMAGES[name](path, chance)
    return f"{path.relative_to(store)}: {name}"


def set_clock_back(store: Path, seconds: float) -> Callable[[], None]:
    """Put every stamp of a store into the future, and give a fault that shows a process an earlier time as well."""
    for path in [store, *store.rglob("*")]:
        status = path.lstat()
        os.utime(path, (status.st_atime + seconds, status.st_mtime + seconds), follow_symlinks=False)

    def earlier() -> None:
        true = time.time
        time.time = lambda: true() - seconds

    return earlier


def refusing(number: int, after: int) -> Callable[[], None]:
    """A fault: from some flush, rename or link on, the system answers with this error."""

    def start() -> None:
        left = [after]

        def failing(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                left[0] -= 1
                if left[0] < 0:
                    raise OSError(number, os.strerror(number), str(arguments[0]))
                return function(*arguments, **options)

            return call

        os.fsync, os.replace, os.link = failing(os.fsync), failing(os.replace), failing(os.link)
        os.rename = failing(os.rename)

    return start


NO_ROOM, READ_ONLY = errno.ENOSPC, errno.EROFS


class Disk:
    """A small disk in memory, where the system lets us mount one."""

    def __init__(self, place: Path, kibibytes: int) -> None:
        self.place = place
        place.mkdir(parents=True, exist_ok=True)
        self.mounted = self._mount("-t", "tmpfs", "-o", f"size={kibibytes}k", "tmpfs", str(place))

    def resize(self, kibibytes: int) -> None:
        assert self._mount("-o", f"remount,size={kibibytes}k", str(self.place))

    def read_only(self, yes: bool) -> bool:
        return self._mount("-o", f"remount,{'ro' if yes else 'rw'}", str(self.place))

    def close(self) -> None:
        if self.mounted:
            subprocess.run(["umount", str(self.place)], check=True)
        shutil.rmtree(self.place, ignore_errors=True)

    @staticmethod
    def _mount(*arguments: str) -> bool:
        if shutil.which("mount") is None:
            return False
        return subprocess.run(["mount", *arguments], capture_output=True).returncode == 0
