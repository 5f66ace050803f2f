"""`rankfall coverage`: which architectures of the installed library can be audited, and how far."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, emit, notes, paper, table


def coverage(
    types: Annotated[list[str] | None, typer.Argument(help="Model types to check now, such as llama or vit.")] = None,
    outcome: Annotated[str, typer.Option(help="Only rows whose outcome holds this word, such as exact.")] = "",
    json: JsonFlag = False,
) -> None:
    """List every architecture in the installed transformers library: whether it uses the attention interface, and
    whether recording a small random model of it was bit-equal to eager attention when last measured.

    With model types, measure those now instead; exit status 1 unless all are exact.

    Example: `rankfall coverage --outcome partial`, `rankfall coverage llama gemma3_text vit`
    """
    from rankfall.models.coverage import check_architecture, coverage_table, installed_architectures, known_type

    if types:
        reach = {one.model_type: one.reach for one in installed_architectures()}
        with notes.status("building and running small random models"):
            checked = [asdict(check_architecture(known_type(name))) for name in types]
        rows: list[dict[str, Any]] = [{"reach": reach[row["model_type"]], **row} for row in checked]
    else:
        rows = [row for row in coverage_table() if outcome in row["outcome"]]
    counts: dict[str, int] = {}
    for row in rows:
        counts[row["outcome"]] = counts.get(row["outcome"], 0) + 1

    def show() -> None:
        columns = ("model_type", "reach", "outcome", "expected", "calls")
        # Whoever asks about a few wants to know why; in the list of hundreds the reasons are in --json.
        table("Architectures", rows, (*columns, "note") if types else columns)
        paper.print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())))

    emit({"architectures": rows, "counts": counts}, as_json=json, show=show)
    if types and any(row["outcome"] != "exact" for row in rows):
        raise typer.Exit(1)
