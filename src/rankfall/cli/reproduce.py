"""`rankfall reproduce`: regenerate figures and tables of the papers beside their published values."""

from __future__ import annotations

import time
from json import dumps
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape

from rankfall.cli.output import JsonFlag, emit, notes, paper, plain, require_folder, table
from rankfall.errors import require


def reproduce(
    figures: Annotated[list[str] | None, typer.Argument(help="Such as amsel/fig1 or wu/fig3.")] = None,
    scale: Annotated[str, typer.Option(help="smoke (seconds), quick (a minute or two) or paper.")] = "quick",
    every: Annotated[bool, typer.Option("--all", help="Every figure there is.")] = False,
    out: Annotated[Path, typer.Option(help="Folder for pictures and tables.")] = Path("reproduced"),
    json: JsonFlag = False,
) -> None:
    """Regenerate a figure or table of the papers, ours beside published.

    Example: `rankfall reproduce wu/fig1 --scale quick --out figures`
    """
    from rankfall.catalogue import FIGURES
    from rankfall.figures.base import SCALES
    from rankfall.report.gallery import gallery
    from rankfall.report.page import write

    require(
        scale in SCALES,
        required=f"--scale to be one of {', '.join(SCALES)}",
        got=scale,
        remedy="quick suits a laptop",
    )
    require(
        bool(figures) != every,
        required="figures to reproduce, or --all",
        got="both" if figures else "neither",
        remedy=f"name some of {', '.join(FIGURES.names)}",
    )
    require_folder(out)
    chosen = [FIGURES[name] for name in (list(FIGURES.names) if every else figures or ())]
    runs: list[Any] = []
    for figure in chosen:
        start = time.perf_counter()
        with notes.status(f"{figure.id}: {figure.title}") as status:
            outcome = figure.run(
                scale,  # type: ignore[arg-type]
                lambda what, share, s=status, f=figure: s.update(f"{f.id}: {what}, {share:.0%} done"),
            )
        runs.append((figure, outcome, outcome.record(figure, scale, time.perf_counter() - start)))  # type: ignore[arg-type]
    page = write(
        gallery(runs, f"rankfall reproduce {'--all' if every else ' '.join(figures or ())} --scale {scale}"), out
    )
    records = [record for _, _, record in runs]
    (out / "outcomes.json").write_text(dumps(plain(records), indent=1) + "\n")

    def show() -> None:
        for one in records:
            _show(one)
        paper.print(f"\nreport: {page}", markup=False)

    emit({"figures": records, "report": str(page)}, as_json=json, show=show)


def _show(one: dict[str, Any]) -> None:
    verdict = {True: "agrees", False: "does NOT agree", None: "nothing published to compare"}[one["agrees"]]
    paper.print(f"\n[bold]{one['id']}[/bold] {one['title']}: {verdict} ({one['seconds']:.1f} s, {one['scale']})")
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
