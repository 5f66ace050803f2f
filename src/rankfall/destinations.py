"""Where results may be written, asked before any work: a file or a folder, never a device, a pipe or a loop."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path

from rankfall.errors import RequestError, brief, require

MOST_PATH = 200
"""Characters of a path that a refusal repeats."""
KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFREG: "a file",
}


def require_writable_file(path: Path | str, name: str, endings: Sequence[str] = ()) -> Path:
    """The path of a file that can be written: new, or a plain file, also through a link; parents may be missing."""
    given = _named(path, name, "a file")
    require(
        not endings or given.suffix.lower() in endings,
        required=f"{name} to end in one of {', '.join(endings)}",
        got=path,
        remedy=f"for example {given.stem[:40]}{endings[0] if endings else ''}",
    )
    kind = _kind(given, name)
    _require_kind(given, name, kind, "a file")
    _require_leave(given if kind else _nearest(given.parent, name), name)
    return given


def require_writable_folder(path: Path | str, name: str) -> Path:
    """The path of a folder that can be written into: new or old, also through a link; parents may be missing."""
    given = _named(path, name, "a folder")
    kind = _kind(given, name)
    _require_kind(given, name, kind, "a folder")
    _require_leave(given if kind else _nearest(given.parent, name), name)
    return given


def make_parents(path: Path) -> Path:
    """The same path, its folder there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _named(path: Path | str, name: str, kind: str) -> Path:
    text = os.fspath(path)
    # An empty path and `.` are both the present folder to `Path`; for a file neither is a name.
    empty = not text.strip() or (kind == "a file" and Path(text).name == "")
    require(not empty, required=f"{name} to name {kind}", got=repr(text), remedy="give it a name")
    null = "\0" in text
    require(not null, required=f"{name} without null characters", got=repr(text), remedy="choose another name")
    return Path(text)


def _kind(path: Path, name: str) -> str | None:
    """What is there, links followed; None for nothing. A link that leads nowhere, or in a circle, is refused."""
    try:
        return KINDS.get(stat.S_IFMT(path.stat().st_mode), "something else")
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            remedy = "remove the link, or choose another name"
            raise _refused(path, name, "a link that leads nowhere", remedy) from error
        return None
    except OSError as error:
        raise _refused(path, name, os.strerror(error.errno or 0).lower(), "choose another name") from error


def _nearest(folder: Path, name: str) -> Path:
    """The nearest folder above that exists; a file in its place is refused."""
    for one in (folder, *folder.parents):
        kind = _kind(one, name)
        if kind is not None:
            _require_kind(one, name, kind, "a folder")
            return one
    return folder


def _require_kind(path: Path, name: str, kind: str | None, wanted: str) -> None:
    if kind not in (None, wanted):
        raise _refused(path, name, f"{kind}, where {wanted} would be needed", "choose another name")


def _require_leave(path: Path, name: str) -> None:
    wanted = os.W_OK | (os.X_OK if path.is_dir() else 0)
    if not os.access(path, wanted):
        raise _refused(path, name, "not writable", "choose a place that you may write to")
    if path.is_dir():
        _require_new_file(path, name)


def _require_new_file(folder: Path, name: str) -> None:
    """Permissions are not all: `/proc` takes no file even of those who may write there. The file that is tried has no
    name where the system can do that, and is gone at once."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        why = f"no file can be made there ({os.strerror(error.errno or 0).lower()})"
        raise _refused(folder, name, why, "choose a place that takes files") from error


def _refused(path: Path, name: str, why: str, remedy: str) -> RequestError:
    return RequestError(required=f"a place to write {name}", got=f"{brief(path, MOST_PATH)}: {why}", remedy=remedy)
