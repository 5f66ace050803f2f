"""What is damaged is moved into <store>/.damaged, whole, and a person is told; nothing of it is deleted."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any

from rankfall.sources import read_bounded
from rankfall.store.files import storage_errors

AREA = ".damaged"


def set_aside(path: Path, store: Path, name: str | None = None) -> Path | None:
    """Move a file or folder into the store's `.damaged`; None when another process was quicker."""
    target = store / AREA / f"{name or path.name}.{secrets.token_hex(4)}"
    with storage_errors(target):
        target.parent.mkdir(exist_ok=True)
        try:
            os.rename(path, target)
        except FileNotFoundError:
            return None
    return target


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file: FileNotFoundError when there is none, ValueError that says what is wrong with it."""
    try:
        # A folder says what it is; pipes and devices must not be waited for.
        found = json.loads(path.read_bytes() if path.is_dir() else read_bounded(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(os.strerror(error.errno or 0)) from None
    except (ValueError, RecursionError):
        raise ValueError("no readable JSON") from None
    if not isinstance(found, dict):
        raise ValueError(f"JSON of a {type(found).__name__} instead of an object")
    return found


def is_plain_name(name: object) -> bool:
    """Whether this names a file in its own folder and nowhere else."""
    return isinstance(name, str) and name == Path(name).name and name not in ("", ".", "..") and "\0" not in name
