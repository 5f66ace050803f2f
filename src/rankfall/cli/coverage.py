"""`rankfall coverage`: which architectures of the installed library can be audited, and how far."""

from __future__ import annotations

from typing import Annotated

import typer

from rankfall.cli.output import JsonFlag, emit, paper, shown, table

COLUMNS = ("model_type", "reach", "outcome", "expected", "calls")


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
    from rankfall.api.coverage import coverage as run

    with shown("coverage") as progress:
        result = run(types, outcome=outcome, progress=progress)

    def show() -> None:
        # Whoever asks about a few wants to know why; in the list of hundreds the reasons are in --json.
        table("Architectures", result.architectures, (*COLUMNS, "note") if types else COLUMNS)
        paper.print(", ".join(f"{name}: {count}" for name, count in sorted(result.counts.items())))

    emit(result.record(), as_json=json, show=show)
    if types and not result.exact:
        raise typer.Exit(1)
