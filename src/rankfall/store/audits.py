"""Finished audits: one file each, named by what was audited and how, written at once or not at all.

<store>/audits.json                 which version of the layout this is
<store>/<id>.json                   the identity in full, the audit's record, its cost, and a checksum of these
<store>/.claims/                    who audits what at this moment
<store>/.digests/                   checksums of large files, by path, size and times, so that none is read twice
<store>/.damaged/                   files set aside because they no longer matched their checksum
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rankfall.errors import require
from rankfall.sources import read_json
from rankfall.store.damage import set_aside
from rankfall.store.files import plain, storage_errors, write_bytes
from rankfall.store.identity import DIGITS, checksum

VERSION = 1
MARK = "audits.json"
SMALL = 1 << 20
"""Files below so many bytes are read again each time."""
SETTLED = 2.0
"""A file that changed less than so many seconds ago may change again within one tick of the file system's clock."""


@dataclass(frozen=True)
class StoredAudit:
    """An audit as it was when it was finished: its record is what `rankfall audit --json` prints."""

    id: str
    identity: Mapping[str, Any]
    record: Mapping[str, Any]
    seconds: float


class Audits:
    """A folder of finished audits. A file that was damaged is set aside, and its audit counts as missing."""

    def __init__(self, path: Path | str, note: Callable[[str], None] = lambda text: None) -> None:
        self.path = Path(path)
        self.note = note
        mark = self.path / MARK
        if not mark.exists():
            _require_new(self.path)
            with storage_errors(self.path):
                self.path.mkdir(parents=True, exist_ok=True)
            write_bytes(mark, (json.dumps({"format": "rankfall audits", "version": VERSION}) + "\n").encode())
        _require_version(mark)

    @property
    def claims_folder(self) -> Path:
        return self.path / ".claims"

    def ids(self) -> list[str]:
        """Every finished audit, in a fixed order."""
        return sorted(path.stem for path in self.path.glob("[!.]*.json") if path.name != MARK)

    def find(self, id: str) -> StoredAudit | None:
        """The finished audit of that name, or None; a damaged one is moved away and said."""
        path = self.path / f"{id}.json"
        try:
            content = read_json(path)
            body = content["audit"]
            if content["sha256"] != _checksum(body) or audit_id(body["identity"]) != id:
                raise ValueError
            return StoredAudit(id, body["identity"], body["record"], float(body["seconds"]))
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError):
            self.note(
                f"the stored audit {path} is damaged; it is moved to {set_aside(path, self.path)} and made anew"
            )
            return None

    def write(self, identity: Mapping[str, Any], record: Mapping[str, Any], seconds: float) -> StoredAudit:
        """Write a finished audit, whole or not at all."""
        body = plain({"identity": identity, "record": record, "seconds": seconds})
        id = audit_id(body["identity"])
        content = {"sha256": _checksum(body), "audit": body}
        write_bytes(self.path / f"{id}.json", (json.dumps(content, allow_nan=False) + "\n").encode())
        return StoredAudit(id, body["identity"], body["record"], seconds)

    def digest(self, path: Path) -> str:
        """SHA-256 of a file; of a large one from the last time, if neither size nor times have changed since."""
        real = path.resolve()
        facts = _facts(real)
        memo = self.path / ".digests" / hashlib.sha256(str(real).encode()).hexdigest()[:DIGITS]
        if facts["bytes"] >= SMALL:
            try:
                known = read_json(memo)
                if known["file"] == facts:
                    return str(known["sha256"])
            except (FileNotFoundError, ValueError, KeyError, TypeError):
                pass
        found = checksum(real)
        settled = time.time_ns() - max(facts["mtime_ns"], facts["ctime_ns"]) > SETTLED * 1e9
        if facts["bytes"] >= SMALL and settled and _facts(real) == facts:
            with storage_errors(memo):
                memo.parent.mkdir(exist_ok=True)
            write_bytes(memo, json.dumps({"file": facts, "sha256": found}).encode())
        return found


def audit_id(identity: Mapping[str, Any]) -> str:
    """The first 16 hex digits of the SHA-256 of what was audited and how, as canonical JSON."""
    return _checksum(plain(identity))[:DIGITS]


def _checksum(content: Any) -> str:
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def _facts(path: Path) -> dict[str, Any]:
    seen = path.stat()
    return {
        "path": str(path),
        "inode": seen.st_ino,
        "bytes": seen.st_size,
        "mtime_ns": seen.st_mtime_ns,
        "ctime_ns": seen.st_ctime_ns,
    }


def _require_new(path: Path) -> None:
    if not path.exists():
        return
    require(path.is_dir(), required=f"a folder at {path}", got="a file", remedy="name another place for the store")
    held = [item.name for item in path.iterdir() if not item.name.startswith(".")]
    require(
        not held or (path / MARK).exists(),
        required=f"a store of audits at {path}, that is a folder with {MARK}, or a new or empty one",
        got=f"a folder with {sorted(held)[0] if held else ''} and no {MARK}",
        remedy="name another folder with --store",
    )


def _require_version(mark: Path) -> None:
    try:
        found = read_json(mark)["version"]
    except (ValueError, KeyError, TypeError):
        found = "none that can be read"
    require(
        found == VERSION,
        required=f"a store of audits of version {VERSION} in {mark.parent}",
        got=f"version {found}",
        remedy="name another folder with --store",
    )
