"""What may be read whole: a plain file of bearable size, never a pipe that waits or a device without an end."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

MOST_READ = 1 << 28
"""Bytes of a file that is read whole."""


def read_bounded(path: Path) -> bytes:
    """The bytes of a plain file of bearable size; anything else has a value that cannot be read."""
    facts = path.stat()
    if not stat.S_ISREG(facts.st_mode) or facts.st_size > MOST_READ:
        raise ValueError(f"{path.name} is no plain file of at most {MOST_READ:,} bytes")
    return path.read_bytes()


def read_json(path: Path) -> Any:
    """What a JSON file holds; one that cannot be read as JSON is a ValueError, however it fails."""
    try:
        return json.loads(read_bounded(path))
    except RecursionError:
        raise ValueError(f"{path.name} is nested too deeply") from None
