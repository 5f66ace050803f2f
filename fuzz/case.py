"""One input: files to prepare, edits that damage them, and a command line; plain values, so that it can be kept."""

from __future__ import annotations

import json
import os
import random
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MOST_EDITED = 1 << 24
Edit = list[Any]
"""A path, what to do with it, and with what: see `EDITS`."""


@dataclass(frozen=True)
class Case:
    """`template` names the folder that is copied first; edits come next, in order; then the command runs."""

    arguments: tuple[str, ...]
    template: str = "plain"
    edits: tuple[Edit, ...] = field(default=())

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return {
            "arguments": list(self.arguments),
            "template": self.template,
            "edits": [list(one) for one in self.edits],
        }

    @classmethod
    def of(cls, record: dict[str, Any]) -> Case:
        """The case of a record."""
        return cls(tuple(record["arguments"]), record.get("template", "plain"), tuple(record.get("edits", ())))


def _clear(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    _clear(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", errors="surrogatepass")


def _plain(path: Path) -> bytes:
    """What is in a file that can be edited; an earlier edit may have left a pipe or a device in its place."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > MOST_EDITED:
        raise ValueError(path)
    return path.read_bytes()


def _cut(path: Path, share: float) -> None:
    content = _plain(path)
    path.write_bytes(content[: int(len(content) * share)])


def _flip(path: Path, place: float, value: int) -> None:
    content = bytearray(_plain(path))
    if content:
        content[int(place * (len(content) - 1))] ^= value
    path.write_bytes(bytes(content))


def _set(path: Path, keys: list[Any], value: Any) -> None:
    """Set, add or (with the value "<gone>") take out one entry of a JSON file."""
    document = json.loads(_plain(path))
    place = document
    for key in keys[:-1]:
        place = place[key]
    if value == "<gone>":
        del place[keys[-1]]
    else:
        place[keys[-1]] = value
    path.write_text(json.dumps(document))


def _folder(path: Path) -> None:
    _clear(path)
    path.mkdir(parents=True)


def _link(path: Path, target: str) -> None:
    _clear(path)
    path.symlink_to(target)


def _fifo(path: Path) -> None:
    _clear(path)
    os.mkfifo(path)


def _socket(path: Path) -> None:
    _clear(path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path.name)


def _size(path: Path, size: int) -> None:
    """A file with a hole: large, and almost nothing on the disk."""
    with path.open("r+b" if path.exists() else "wb") as file:
        file.truncate(size)


EDITS: dict[str, Callable[..., None]] = {
    "write": _write,
    "cut": _cut,
    "flip": _flip,
    "set": _set,
    "remove": _clear,
    "folder": _folder,
    "link": _link,
    "fifo": _fifo,
    "socket": _socket,
    "size": _size,
}


def apply(edits: tuple[Edit, ...]) -> None:
    """Edit the files of the present folder, of a pattern the first; one that an earlier edit took away stays so."""
    for path, name, *values in edits:
        try:
            found = sorted(Path().glob(path))[0] if "*" in path else Path(path)
            EDITS[name](found, *values)
        except (OSError, KeyError, IndexError, TypeError, ValueError, RecursionError):
            continue


def pick(draw: random.Random, table: dict[Any, float]) -> Any:
    """One of the keys, with its weight."""
    return draw.choices(list(table), weights=list(table.values()))[0]
