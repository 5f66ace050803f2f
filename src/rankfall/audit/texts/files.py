"""Text files, read as data."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rankfall.audit.load.limits import MEBI, require_size
from rankfall.errors import RequestError

LARGEST = 64 * MEBI


def read_texts(paths: Sequence[Path]) -> list[str]:
    """The files' contents; they must be UTF-8."""
    texts = []
    for path in paths:
        require_size(path, LARGEST)
        try:
            texts.append(path.read_text(encoding="utf-8"))
        except UnicodeDecodeError:
            raise RequestError(
                required=f"text in UTF-8 in {path.name}", got="other bytes", remedy="convert the file first"
            ) from None
    return texts
