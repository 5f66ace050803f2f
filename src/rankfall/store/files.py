"""Files that are whole or absent, and records as CSV and Parquet that are read back exactly."""

from __future__ import annotations

import contextlib
import csv
import errno
import io
import json
import math
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.errors import RequestError

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

Record = Mapping[str, Any]

NO_ROOM = ("room on the disk", "free some room and run the same command again: everything finished is kept")
GONE = ("a folder", "make the folder; if it was moved while this ran, run the same command again on its new place")
IN_THE_WAY = ("a place", "move away what lies there")
BROKEN = ("a disk that works", "check the disk: everything finished before is kept")
NO_LEAVE = ("leave", "choose a folder that you may write to")
REFUSALS = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), NO_ROOM)
REFUSALS |= dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), NO_LEAVE)
REFUSALS |= dict.fromkeys((errno.ENOENT, errno.ESTALE), GONE)
REFUSALS |= dict.fromkeys((errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ELOOP), IN_THE_WAY)
REFUSALS |= dict.fromkeys((errno.EIO, errno.ENXIO), BROKEN)
"""What is missing to write a file, and what to do, by the system's error number."""
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
        if number not in REFUSALS:
            raise
        missing, remedy = REFUSALS[number]
        raise StorageError(required=f"{missing} to write {path}", got=os.strerror(number), remedy=remedy) from error


def _error_number(error: Exception) -> int:
    if isinstance(error, OSError) and error.errno is not None:
        return error.errno
    # safetensors writes from Rust and reports the system's error inside its message
    found = re.search(r"os error (\d+)", str(error))
    return int(found.group(1)) if found else 0


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


def plain(value: Any) -> Any:
    """Anything we compute as JSON can hold it: tensors become lists; NaN and the infinities become null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def to_csv(records: Sequence[Record]) -> str:
    """Every value as JSON writes it, text without quotes where it cannot be mistaken, None as nothing."""
    names = list(dict.fromkeys(name for record in records for name in record))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_write(record.get(name)) for name in names] for record in records)
    return page.getvalue()


def from_csv(text: str) -> list[dict[str, Any]]:
    """The records back, with their types."""
    rows = csv.DictReader(io.StringIO(text))
    return [{name: _read(value or "") for name, value in row.items()} for row in rows]


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value if _read(value) == value else json.dumps(value)
    return json.dumps(value)


def _read(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def write_records(path: Path, records: Sequence[Record]) -> None:
    """Write records as Parquet, atomically."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(table_of(records), sink)
    write_bytes(path, sink.getvalue().to_pybytes())


def read_records(path: Path) -> list[dict[str, Any]]:
    """Read records back, None and all."""
    rows: list[dict[str, Any]] = read_table(path).to_pylist()
    return rows


def read_table(path: Path) -> pa.Table:
    """One Parquet file. Read through memory, so that no handle outlives the call.

    In this thread: Arrow's own threads let go of what they read some time after the call, and one that needs the
    interpreter for that while it ends aborts the process.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.ParquetFile(pa.BufferReader(path.read_bytes())).read(use_threads=False)


def table_of(records: Sequence[Record]) -> pa.Table:
    """Records as a table: the union of their keys in order of appearance."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for record in records for name in record))
    return pa.table({name: pa.array([record.get(name) for record in records]) for name in names})


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables of different columns or number types under each other."""
    import pyarrow as pa

    return pa.concat_tables(list(tables), promote_options="permissive")
