"""`rankfall reproduce`: regenerate figures and tables of the papers beside their published values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from rankfall.catalogue import FIGURES
from rankfall.cli.output import JsonFlag, Outputs, emit, paper, shown, table


def reproduce(
    figures: Annotated[
        list[str] | None,
        typer.Argument(help=f"Figures or tables: {FIGURES.choices}.", autocompletion=FIGURES.complete),
    ] = None,
    scale: Annotated[
        str, typer.Option(help="Size of the run: smoke (seconds), quick (a minute or two) or paper.")
    ] = "quick",
    every: Annotated[bool, typer.Option("--all", help="Every figure there is.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for pictures and tables.")] = Path("reproduced"),
    json: JsonFlag = False,
) -> None:
    """Regenerate a figure or table of the papers, ours beside published.

    Example: `rankfall reproduce wu/fig1 --scale quick --out figures`

    Quick: `rankfall reproduce wu/fig1 --scale smoke --out figures`
    """
    from rankfall.api.reproduce import reproduce as run

    outputs = Outputs(out=out)
    with shown("reproducing") as progress:
        result = run(*(figures or ()), scale=scale, every=every, progress=progress)

    def show() -> None:
        for one in result.figures:
            _show(one)

    emit(result.record() | {"report": outputs.page}, as_json=json, show=show)
    asked = "--all" if every else " ".join(figures or ())
    outputs.write(result, f"rankfall reproduce {asked} --scale {scale}")


def _show(one: dict[str, Any]) -> None:
    paper.print(
        f"\n[bold]{one['id']}[/bold] {one['title']}: {one['standing']} ({one['seconds']:.1f} s, {one['scale']})"
    )
    if one["points"]:
        table("points", *_readable(one["points"]))
    for claim in one["claims"]:
        mark = "[green]holds[/green]" if claim["holds"] else "[red]fails[/red]"
        paper.print(f"  {mark}  {escape(claim['statement'])}  ({escape(claim['evidence'])})")
    for note in one["notes"]:
        paper.print(f"  note: {note}", markup=False)


def _readable(points: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[str]]:
    """Four digits, and no columns that are empty throughout: terminals are narrow; files and --json hold all."""
    columns = [name for name in points[0] if any(point.get(name) is not None for point in points)]
    rows = [
        {name: f"{value:.4g}" if isinstance(value, float) else value for name, value in point.items()}
        for point in points
    ]
    return rows, columns
