"""Queries over the store: rows of all runs, simple conditions, and SQL through DuckDB."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.errors import RequestError, require
from rankfall.store.files import joined, table_of
from rankfall.store.run import HISTORY, DamagedRunError
from rankfall.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa

Rows = list[dict[str, Any]]

COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "=": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}
CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)\s*(.+?)\s*$")


def rows_of(store: Store) -> tuple[Rows, list[DamagedRunError]]:
    """One row per sound run, and what is wrong with the others."""
    rows: Rows = []
    damaged: list[DamagedRunError] = []
    for id in store.names():
        try:
            run = store.find(id)
            if run is not None:
                rows.append({**run.summary(), "source": run.manifest.source})
        except DamagedRunError as error:
            damaged.append(error)
    return rows, damaged


def where(rows: Rows, conditions: Sequence[str]) -> Rows:
    """The rows that meet every condition, such as `rank=8`, `learning_rate<0.01`, `task!=nearest`."""
    for text in conditions:
        found = CONDITION.match(text)
        if found is None:
            raise RequestError(
                required="a condition such as rank=8",
                got=repr(text),
                remedy=f"write column, one of {' '.join(COMPARISONS)}, and a value",
            )
        column, sign, value = found.groups()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        require(
            column in columns or not rows,
            required="a condition on a column of the runs",
            got=column,
            remedy=f"the columns are {', '.join(columns)}",
        )
        rows = [row for row in rows if _meets(row.get(column), sign, value)]
    return rows


def _meets(held: Any, sign: str, text: str) -> bool:
    if held is None:
        return (text.lower() in ("none", "null")) == (sign == "=") and sign in ("=", "!=")
    wanted: Any = text.strip("'\"")
    if isinstance(held, bool):
        wanted = {"true": True, "false": False, "yes": True, "no": False}.get(wanted.lower())
    elif isinstance(held, (int, float)):
        try:
            wanted = float(wanted)
        except ValueError:
            return sign == "!="
    return wanted is not None and COMPARISONS[sign](held, wanted)


def select(store: Store, query: str) -> Rows:
    """Run SQL over the tables `runs` and `history`.

    The database lives in memory and holds copies of the tables; it can neither read nor write any file, load an
    extension or reach the network.
    """
    import duckdb

    rows, damaged = rows_of(store)
    if damaged:
        raise damaged[0]
    # By default it starts a thread for every core, which a process with little address space does not survive.
    connection = duckdb.connect(":memory:", config={"threads": 1})
    try:
        connection.register("runs", table_of(rows) if rows else _nothing())
        connection.register("history", _history(store, wanted="history" in query.lower()))
        connection.execute("SET python_enable_replacements = false")
        connection.execute("SET enable_external_access = false")
        connection.execute("SET lock_configuration = true")
        found = connection.execute(query)
        if found is None:
            raise duckdb.ParserException("no statement")
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, record, strict=True)) for record in found.fetchall()]
    except duckdb.Error as error:
        raise RequestError(
            required="SQL that DuckDB accepts over the tables runs and history",
            got=" ".join(str(error).partition("LINE ")[0].split()),
            remedy='try "select * from runs limit 1" to see the columns',
        ) from None
    finally:
        connection.close()


def _history(store: Store, *, wanted: bool) -> pa.Table:
    """All histories under each other, or the columns alone when the query does not ask for rows."""
    tables = []
    for run in store.runs():
        if HISTORY in run.manifest.names:
            tables.append(run.history())
            if not wanted:
                tables = [tables[0].slice(0, 0)]
                break
    return joined(tables) if tables else _nothing()


def _nothing() -> pa.Table:
    import pyarrow as pa

    return pa.table({"id": pa.array([], pa.string())})
