"""Runs as a table for people: what differs between them, and what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, emit, notes, paper, plain, table
from rankfall.errors import require

RESULTS = ("mse_best", "mse_final", "mse_fresh", "seconds")


def run_table(title: str, rows: Sequence[Mapping[str, Any]], *, ordered: bool = False) -> None:
    """Print id, status, the settings that are not the same everywhere, and the results to four digits."""
    from rankfall.training.cell import Cell

    if not rows:
        paper.print(f"{title}: nothing yet")
        return
    settings = [field.name for field in dataclasses.fields(Cell)]
    varying = [name for name in settings if len({str(row.get(name)) for row in rows}) > 1]
    if ordered:
        rows = sorted(rows, key=lambda row: [_sortable(row.get(name)) for name in varying])
    shown = ("id", "status", *(varying or ("rank",)), *RESULTS)
    table(title, [{name: _short(name, row.get(name)) for name in shown} for row in rows], shown)


def _short(name: str, value: Any) -> Any:
    if name == "id":
        return str(value)[:8]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return (number, float(value) if number else 0.0, str(value))


def runs(
    store: Annotated[Path, typer.Option(help="Folder that keeps the runs.")] = Path("runs"),
    conditions: Annotated[
        list[str] | None, typer.Option("--where", help="Keep rows such as rank=8 or mse_best<0.1; may be repeated.")
    ] = None,
    sql: Annotated[str | None, typer.Option(help="SQL over the tables runs and history.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows into this CSV file.")] = None,
    source: Annotated[Path | None, typer.Option("--import", help="Take in committed results first.")] = None,
    target: Annotated[
        Path | None, typer.Option("--export-results", help="Write summaries with their provenance into this folder.")
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every file; exit status 1 on damage.")] = False,
    set_aside: Annotated[bool, typer.Option("--set-aside", help="Move damaged runs out of the way.")] = False,
    json: JsonFlag = False,
) -> None:
    """List the finished runs of a store, all or some, or ask it in SQL.

    Example: `rankfall runs --sql "select rank, min(mse_best) from runs group by rank order by rank"`
    """
    from rankfall.store.files import to_csv, write_bytes
    from rankfall.store.query import rows_of, select, where
    from rankfall.store.results import export_results, import_results
    from rankfall.store.store import Store

    require(
        not (sql and conditions),
        required="either --sql or --where",
        got="both",
        remedy="write the condition into the SQL",
    )
    kept = Store(store, create=source is not None)
    if source is not None:
        notes.print(f"{len(import_results(kept, source))} runs taken in from {source}")
    if set_aside:
        for id in kept.damaged():
            notes.print(f"{id} moved to {kept.set_aside(id)}", soft_wrap=True)
    found, damaged = rows_of(kept)
    rows = select(kept, sql) if sql is not None else where(found, conditions or [])
    if verify:
        damaged = list(kept.damaged().values())
    for error in damaged:
        notes.print(f"damaged: {error}", style="yellow", markup=False, soft_wrap=True)
    if csv is not None:
        write_bytes(csv, to_csv(plain(rows)).encode())
    if target is not None:
        wanted = {row["id"] for row in rows if "id" in row}
        for path in export_results((run for run in kept.runs() if run.id in wanted), target):
            notes.print(f"wrote {path}", soft_wrap=True)
    result = {"store": str(store), "rows": rows, "damaged": [str(error) for error in damaged]}
    title = f"{len(rows)} rows"
    emit(result, as_json=json, show=lambda: table(title, rows) if sql else run_table(title, rows, ordered=True))
    if verify and damaged:
        raise typer.Exit(1)
