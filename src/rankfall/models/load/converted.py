"""What was converted once is kept in the cache under the hash of the bytes that it came from, whole or not at all."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rankfall.store.identity import checksum
from rankfall.system import cache_folder


def kept_place(path: Path, ending: str) -> Path:
    """Where the conversion of a file lies, or is to lie; the ending names the kind of conversion and its version."""
    place = cache_folder() / "converted" / f"{checksum(path)}-{ending}"
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


@contextlib.contextmanager
def folder_beside(place: Path) -> Iterator[Path]:
    """A folder to write into, on the same disk, that is gone afterwards."""
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".converting-", ignore_cleanup_errors=True) as made:
        yield Path(made)


@contextlib.contextmanager
def written_at_once(folder: Path) -> Iterator[Path]:
    """A folder to write into that becomes `folder` once all is written, and is gone where anything failed."""
    with folder_beside(folder) as made:
        yield made
        try:
            made.rename(folder)
        except OSError:
            # Someone else finished the same conversion first; theirs is as good.
            if not (folder / "config.json").exists():
                raise
