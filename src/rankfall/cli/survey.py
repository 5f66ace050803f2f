"""`rankfall survey`: width, heads and head size of every architecture that ships with transformers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, Outputs, PlotPath, emit, paper, shown, table

if TYPE_CHECKING:
    from rankfall.api.survey import SurveyResult
    from rankfall.models.architectures.survey import HeadShape


def survey(
    model_types: Annotated[list[str] | None, typer.Argument(help="Model types to read (default all).")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write every row into this CSV file.")] = None,
    plot: PlotPath = None,
    every: Annotated[bool, typer.Option("--all", help="Print every row, not only those that depart.")] = False,
    json: JsonFlag = False,
) -> None:
    """Which architectures follow H = d/r (heads times head size equals width), and which depart from it.

    Reads the default configuration of every model type of the installed transformers; needs no network.

    Example: `rankfall survey --csv survey.csv --plot survey.png`

    Quick: `rankfall survey gpt2 gemma --csv survey.csv --plot survey.png`
    """
    from rankfall.api.survey import survey as run

    outputs = Outputs(plot=plot, csv=csv)
    with shown("survey") as progress:
        result = run(model_types, progress=progress)
    emit(result.record(), as_json=json, show=lambda: _show(result, every=every or bool(model_types)))
    outputs.write(result)


def _short(shape: HeadShape) -> dict[str, Any]:
    return {
        "model type": shape.model_type,
        "width": shape.width,
        "heads": shape.heads,
        "kv": shape.kv_heads,
        "rank": shape.structural_rank,
        "layers": shape.layers,
        "H r/d": f"{shape.heads_times_rank_over_width:.4g}",
        "r/d": f"{shape.rank_over_width:.3g}",
        "read from": shape.part,
    }


def _show(result: SurveyResult, *, every: bool) -> None:
    if not result.models:
        for line in result.without_heads:
            paper.print(line, markup=False, highlight=False, soft_wrap=True)
        return
    counts = result.summary
    rows = [_short(shape) for shape in result.models if every or shape.departs]
    table("model types" if every else "model types that depart from H = d/r", rows)
    paper.print(
        f"{counts['configurations']} configuration classes of {result.library}, {counts['with_heads']} with attention"
        f" heads, which have {counts['distinct_shapes']} different shapes (width, heads, key/value heads, head size):"
        f" H r = d in {counts['equal_to_one']} classes ({counts['distinct_equal_to_one']} shapes), "
        f"more in {counts['above_one']}, less in {counts['below_one']}; "
        f"{counts['grouped']} grouped, {counts['latent']} latent ({counts['narrow_latents']} of them with latents"
        f" narrower than their heads), {counts['from_parts']} read from a part.",
        highlight=False,
    )
    reasons: dict[str, list[str]] = {}
    for one in result.skipped:
        reasons.setdefault(one.reason.partition(";")[0], []).append(one.model_type)
    for reason, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        paper.print(f"skipped {len(names)}, {reason}: {', '.join(names)}", markup=False, highlight=False)
    paper.print(result.caveat, markup=False)
