"""Records to Parquet and back, exactly: a record is a mapping of plain values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.runs.atomic import write_bytes

if TYPE_CHECKING:
    import pyarrow as pa

Record = Mapping[str, Any]


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
    """One Parquet file. Read through memory, so that no handle outlives the call."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    return pq.read_table(pa.BufferReader(path.read_bytes()))


def table_of(records: Sequence[Record]) -> pa.Table:
    """Records as a table: the union of their keys in order of appearance."""
    import pyarrow as pa

    names = list(dict.fromkeys(name for record in records for name in record))
    return pa.table({name: pa.array([record.get(name) for record in records]) for name in names})


def joined(tables: Iterable[pa.Table]) -> pa.Table:
    """Tables of different columns or number types under each other."""
    import pyarrow as pa

    return pa.concat_tables(list(tables), promote_options="permissive")
