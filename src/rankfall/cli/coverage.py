"""`rankfall coverage`: which architectures of the installed library can be audited, and how far."""

from __future__ import annotations

from typing import Annotated

import typer

from rankfall.cli.output import JsonFlag, emit, paper, shown, table

COLUMNS = ("model_type", "outcome", "depth", "masks", "heads", "ablation", "controls")


def coverage(
    types: Annotated[list[str] | None, typer.Argument(help="Model types to check now, such as llama or vit.")] = None,
    outcome: Annotated[str, typer.Option(help="Only rows whose outcome holds these words, such as partial.")] = "",
    most_used: Annotated[bool, typer.Option("--most-used", help="Only the sixty types that are used most.")] = False,
    json: JsonFlag = False,
) -> None:
    """List every architecture in the installed transformers library: whether recording a small random model of it was
    bit-equal to eager attention, and how much of an audit of it there is: depth, masks, heads, ablation, controls.

    With model types, build and audit those now instead; exit status 1 unless every part of each is exact.

    Example: `rankfall coverage --most-used`, `rankfall coverage llama gemma3_text vit`
    """
    from rankfall.api.coverage import coverage as run

    with shown("coverage") as progress:
        result = run(types, outcome=outcome, most_used=most_used, progress=progress)

    def show() -> None:
        # Whoever asks about a few wants to know why; in the list of hundreds the reasons are in --json.
        table("Architectures", result.architectures, (*COLUMNS, "reasons") if types or most_used else COLUMNS)
        total = len(result.architectures)
        paper.print(f"recording: {', '.join(f'{count} {name}' for name, count in sorted(result.counts.items()))}")
        paper.print(f"audit: every part is exact in {result.complete} of {total}")

    emit(result.record(), as_json=json, show=show)
    if types and result.complete < len(result.architectures):
        raise typer.Exit(1)
