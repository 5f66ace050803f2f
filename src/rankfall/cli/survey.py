"""`rankfall survey`: width, heads and head size of every architecture that ships with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, PlotPath, emit, notes, paper, table
from rankfall.errors import require

if TYPE_CHECKING:
    from rankfall.models.survey import HeadShape, Survey


def survey(
    model_types: Annotated[list[str] | None, typer.Argument(help="Only these model types; none for all.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every row into this CSV file.")] = None,
    plot: PlotPath = None,
    every: Annotated[bool, typer.Option("--all", help="Print every row, not only those that depart.")] = False,
    json: JsonFlag = False,
) -> None:
    """Which architectures follow H = d/r (heads times head size equals width), and which depart from it.

    Reads the default configuration of every model type of the installed transformers; needs no network.

    Example: `rankfall survey --csv survey.csv --plot survey.png`
    """
    from rankfall.models.survey import CAVEAT, survey_configurations

    with notes.status("reading configurations") as status:
        found = survey_configurations(
            model_types or None,
            progress=lambda name, share: status.update(f"reading configurations: {name}, {share:.0%} done"),
        )
    if csv is not None:
        import pandas as pd

        csv.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame([shape.record() for shape in found.models]).to_csv(csv, index=False)
        notes.print(f"wrote {csv}", markup=False)
    if plot is not None:
        from rankfall.drawing.canvas import save
        from rankfall.drawing.survey import draw_survey

        require(
            len(found.models) > 0,
            required="at least one model type with attention heads for --plot",
            got="none",
            remedy="name others, or none for all",
        )
        counts = found.summary()
        title = f"{counts['with_heads']} architectures of {found.library} by their defaults"
        notes.print(f"wrote {save(draw_survey(found.models, title), plot)}", markup=False)
    result = {
        "library": found.library,
        "caveat": CAVEAT,
        "summary": found.summary(),
        "models": [shape.record() for shape in found.models],
        "skipped": [vars(one) for one in found.skipped],
    }
    emit(result, as_json=json, show=lambda: _show(found, result, every=every or bool(model_types)))


def _short(shape: HeadShape) -> dict[str, Any]:
    return {
        "model type": shape.model_type,
        "width": shape.width,
        "heads": shape.heads,
        "kv": shape.kv_heads,
        "rank": shape.head_dim,
        "layers": shape.layers,
        "H r/d": f"{shape.heads_times_rank_over_width:.4g}",
        "r/d": f"{shape.rank_over_width:.3g}",
        "read from": shape.part,
    }


def _show(found: Survey, result: dict[str, Any], *, every: bool) -> None:
    counts = result["summary"]
    shown = [_short(shape) for shape in found.models if every or shape.departs]
    table("all model types" if every else "model types that depart from H = d/r", shown)
    paper.print(
        f"{counts['configurations']} configurations of {found.library}, {counts['with_heads']} with attention heads: "
        f"H r = d in {counts['equal_to_one']}, more in {counts['above_one']}, less in {counts['below_one']}; "
        f"{counts['grouped']} grouped, {counts['latent']} latent, {counts['from_parts']} read from a part.",
        highlight=False,
    )
    reasons: dict[str, list[str]] = {}
    for one in found.skipped:
        reasons.setdefault(one.reason.partition(";")[0], []).append(one.model_type)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        paper.print(f"skipped {len(names)}, {reason}: {', '.join(names)}", markup=False, highlight=False)
    paper.print(result["caveat"], markup=False)
