"""`rankfall runs`: the finished runs of a store; and runs as a table for people, which sweeps print too."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from rankfall.cli.output import JsonFlag, Outputs, PlotPath, emit, notes, paper, table, wrote
from rankfall.destinations import make_parents, require_writable_file, require_writable_folder

RESULTS = ("mse_best", "mse_final", "mse_fresh", "nats_per_byte", "nats_per_byte_error", "seconds")


def runs(
    store: Annotated[Path, typer.Option(help="Folder that keeps the runs.")] = Path("runs"),
    where: Annotated[
        list[str] | None, typer.Option("--where", help="Keep rows such as rank=8 or mse_best<0.1; may be repeated.")
    ] = None,
    sql: Annotated[str | None, typer.Option(help="SQL over the tables runs and history.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the rows into this CSV file.")] = None,
    import_results: Annotated[Path | None, typer.Option("--import", help="Take in committed results first.")] = None,
    export_results: Annotated[
        Path | None, typer.Option("--export-results", help="Write summaries with their provenance into this folder.")
    ] = None,
    export_models: Annotated[
        Path | None,
        typer.Option("--export-models", help="Write each language model as a folder for transformers and audit."),
    ] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Check every file; exit status 1 on damage.")] = False,
    set_aside: Annotated[bool, typer.Option("--set-aside", help="Move damaged runs out of the way.")] = False,
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """List the finished runs of a store, all or some, or ask it in SQL.

    Example: `rankfall runs --sql "select rank, min(mse_best) from runs group by rank order by rank"`
    """
    from rankfall.api.runs import runs as run
    from rankfall.store.files import to_csv, write_bytes

    if csv is not None:
        require_writable_file(csv, "--csv")
    if export_results is not None:
        require_writable_folder(export_results, "--export-results")
    if export_models is not None:
        require_writable_folder(export_models, "--export-models")
    outputs = Outputs(plot=plot)
    result = run(
        store,
        where=where or (),
        sql=sql,
        import_results=import_results,
        export_results=export_results,
        export_models=export_models,
        verify=verify,
        set_aside=set_aside,
    )
    for note in result.notes:
        notes.print(note, markup=False, soft_wrap=True)
    for error in result.damaged:
        notes.print(f"damaged: {error}", style="yellow", markup=False, soft_wrap=True)
    title, rows = f"{len(result.rows)} rows", result.rows
    emit(
        result.record(),
        as_json=json,
        show=lambda: table(title, rows) if sql else run_table(title, rows, ordered=True, chosen=bool(where)),
    )
    if csv is not None:
        # A file is replaced whole; a link stays, and what it leads to is replaced.
        write_bytes(make_parents(csv.resolve()), to_csv(result.record()["rows"]).encode())
        wrote(csv)
    outputs.write(result)
    if verify and result.damaged:
        raise typer.Exit(1)


def run_table(title: str, rows: Sequence[Mapping[str, Any]], ordered: bool = False, chosen: bool = False) -> None:
    """Print id, status, the settings that are not the same everywhere, and the results to four digits."""
    if not rows:
        paper.print(title if chosen else f"{title}: nothing yet")
        return
    varying = varying_settings(rows, ("rank",))
    if ordered:
        rows = sorted(rows, key=lambda row: [_sortable(row.get(name)) for name in varying])
    results = [name for name in RESULTS if any(row.get(name) is not None for row in rows)] or RESULTS[:2]
    columns = ("id", "status", *varying, *results)
    table(title, [{name: _short(name, row.get(name)) for name in columns} for row in rows], columns)


def varying_settings(rows: Sequence[Mapping[str, Any]], always: Sequence[str] = ()) -> list[str]:
    """The settings of cells that are not the same in all rows, and those to show always, in the order of a cell."""
    from rankfall.catalogue import CELL_KINDS

    settings = dict.fromkeys(field.name for kind in CELL_KINDS for field in dataclasses.fields(cast(Any, kind.cell)))
    return [name for name in settings if name in always or len({str(row.get(name)) for row in rows}) > 1]


def _short(name: str, value: Any) -> Any:
    if name == "id":
        return str(value)[:8]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return (number, float(value) if number else 0.0, str(value))
