"""Files that are whole or absent: write beside, flush to the disk, rename. A full disk is a clear error."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from rankfall.errors import RequestError

if TYPE_CHECKING:
    from torch import Tensor

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_LEAVE = (errno.EACCES, errno.EPERM, errno.EROFS)
TEMPORARY = ".tmp"


class StorageError(RequestError):
    """The disk refuses to take more. What was complete before is still complete."""


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn the disk's refusals into one line each; let every other error through."""
    try:
        yield
    except RequestError:
        raise
    except Exception as error:
        number = _error_number(error)
        if number in NO_ROOM:
            raise StorageError(
                required=f"room on the disk to write {path}",
                got=os.strerror(number),
                remedy="free some room and run the same command again: everything finished is kept",
            ) from error
        if number in NO_LEAVE:
            raise StorageError(
                required=f"leave to write {path}",
                got=os.strerror(number),
                remedy="choose a folder that you may write to",
            ) from error
        raise


def _error_number(error: Exception) -> int | None:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # safetensors writes from Rust and reports the system's error inside its message
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else None


def write_atomically(path: Path, fill: Callable[[Path], object]) -> None:
    """Have `fill` write a neighbour of `path`, flush it, and rename it into place; on any error leave nothing."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}{TEMPORARY}")
    with storage_errors(path):
        try:
            fill(beside)
            flush(beside)
            os.replace(beside, path)
            flush(path.parent)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    write_atomically(path, lambda beside: beside.write_bytes(content))


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors atomically as safetensors: numbers only, never pickle."""
    from safetensors.torch import save_file

    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda beside: save_file(plain, beside))


def flush(path: Path) -> None:
    """Make the disk hold what was written to this file or folder."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    except OSError as error:
        # some shared file systems refuse to flush a folder; the rename itself is still atomic there
        if not (path.is_dir() and error.errno in (errno.EINVAL, errno.ENOTSUP)):
            raise
    finally:
        os.close(handle)
