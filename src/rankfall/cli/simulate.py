"""`rankfall simulate`: what depth does to tokens, exactly, with the theorem's rate beside the measured one."""

from __future__ import annotations

import shlex
import sys
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.catalogue import NORMS
from rankfall.cli.output import JsonFlag, PlotPath, emit, notes, paper, shown, table
from rankfall.errors import require, require_count

if TYPE_CHECKING:
    from rankfall.dynamics.experiment import MaskResult

DEFAULT_MASKS = ("causal", "window:4", "causal-window:4", "global-window:1:4", "complete")
SHOWN = ("layer", "log10_mu", "log10_relative_mu", "rank", "effective_rank", "mean_abs_cosine")


def simulate(
    mask: Annotated[
        list[str] | None,
        typer.Option(help="Such as causal, window:4 or a schedule window:4+dilated:4:4. Repeat to compare masks."),
    ] = None,
    norm: Annotated[str, typer.Option(help=f"{NORMS.choices}.")] = "none",
    value: Annotated[str, typer.Option(help="identity, orthogonal, gaussian or counterexample.")] = "orthogonal",
    query_key: Annotated[
        str | None, typer.Option(help="random, xavier, orthogonal, or zero for uniform attention.")
    ] = None,
    tokens: Annotated[int | None, typer.Option(help="Tokens, 64 unless told.")] = None,
    dim: Annotated[int | None, typer.Option(help="Dimension of a token, 32 unless told.")] = None,
    layers: Annotated[int, typer.Option(help="Layers.")] = 400,
    temperature: Annotated[float, typer.Option(help="Scores are divided by this times sqrt(head rank).")] = 1.0,
    heads: Annotated[int, typer.Option(help="Heads; each has its own weights and rank dim / heads.")] = 1,
    residual: Annotated[float, typer.Option(help="How much of the old tokens each layer keeps.")] = 0.0,
    placement: Annotated[str, typer.Option(help="Where the norm stands: post or pre.")] = "post",
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Draw new weights in every layer.")] = False,
    seed: Annotated[int, typer.Option(help="First seed of weights and tokens.")] = 0,
    seeds: Annotated[int, typer.Option(help="How many seeds; the table then shows medians.")] = 1,
    thin: Annotated[int, typer.Option(help="Report every so many layers.")] = 1,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="Put the tokens themselves into the JSON.")
    ] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda; a GPU is used when there is one.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table of all layers and masks into this file.")] = None,
    plot: PlotPath = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a report with its tables and pictures.")] = None,
    json: JsonFlag = False,
) -> None:
    """Run tokens through attention layers and follow their collapse, exactly far below machine precision.

    Without --mask, several masks are compared. With --json, the first mask's result is at the top level and further
    masks are listed under `others`.

    Example: `rankfall simulate --mask window:16 --tokens 64 --dim 32 --layers 2000 --plot window.png`
    """
    import torch

    from rankfall.dynamics.experiment import Experiment, run
    from rankfall.dynamics.step import Rule
    from rankfall.dynamics.weights import WeightRecipe
    from rankfall.masks import parse_schedule
    from rankfall.norms import parse_norm

    small = value == "counterexample"
    chosen = tuple(mask) if mask else (("causal",) if small else DEFAULT_MASKS)
    count, width = (
        tokens if tokens is not None else (2 if small else 64),
        dim if dim is not None else (2 if small else 32),
    )
    require_count("--seeds", seeds)
    require(temperature > 0, required="a positive --temperature", got=temperature, remedy="1 is the usual one")
    device = device or ("cuda" if torch.cuda.is_available() and count * width >= 1 << 16 else "cpu")
    require(
        device == "cpu" or (device.startswith("cuda") and torch.cuda.is_available()),
        required="--device cpu, or cuda where there is a GPU",
        got=device,
        remedy="use --device cpu",
    )
    experiment = Experiment(
        masks=tuple(parse_schedule(text) for text in chosen),
        recipe=WeightRecipe(width, query_key or ("zero" if small else "random"), value, heads, per_layer=per_layer),
        tokens=count,
        layers=require_count("--layers", layers, least=0),
        rule=Rule(parse_norm(norm), placement, residual),  # type: ignore[arg-type]
        temperature=temperature,
        seeds=tuple(range(seed, seed + seeds)),
        thin=thin,
        keep_tokens=keep_tokens,
        device=device,
    )
    with shown("layers", layers) as progress:
        reports = run(experiment, progress)
    title = f"{count} tokens of dimension {width}, norm: {norm}, values: {value}"
    if plot is not None:
        from rankfall.drawing.canvas import save
        from rankfall.drawing.collapse import curve_of, draw_collapse

        save(draw_collapse([curve_of(one) for one in reports], title), plot)
        notes.print(f"picture: {plot}", highlight=False)
    if out is not None:
        from rankfall.report.page import write
        from rankfall.report.simulation import simulation_document

        page = write(simulation_document(reports, title, shlex.join(["rankfall", *sys.argv[1:]])), out)
        notes.print(f"report: {page}", highlight=False, soft_wrap=True)
    if csv is not None:
        import pandas as pd

        csv.parent.mkdir(parents=True, exist_ok=True)
        pd.DataFrame([{"mask": str(one.mask), **row} for one in reports for row in one.records]).to_csv(
            csv, index=False
        )
        notes.print(f"table: {csv}", highlight=False)
    settings = {
        "tokens": count,
        "dim": width,
        "norm": norm,
        "placement": placement,
        "residual": residual,
        "value": value,
        "query_key": experiment.recipe.query_key,
        "heads": heads,
        "temperature": temperature,
        "seeds": list(experiment.seeds),
        "device": device,
    }
    found = [_record(one) for one in reports]
    emit({"settings": settings, **found[0], "others": found[1:]}, as_json=json, show=lambda: _show(reports, found))


def _record(report: MaskResult) -> dict[str, Any]:
    from dataclasses import asdict

    facts, theorem = report.theorem.facts, report.theorem
    first = report.rates[0]
    record: dict[str, Any] = {
        "mask": {
            "name": str(report.mask),
            "radius": facts.radius,
            "diameter": facts.diameter,
            "roots": list(facts.roots),
            "strongly_connected": facts.strongly_connected,
            "quasi_strongly_connected": facts.quasi_strongly_connected,
        },
        "measured_rate": first.rate if first is not None else None,
        "measured": [asdict(rate) if rate is not None else None for rate in report.rates],
        "theorem": theorem.statement,
        "bound_applies": theorem.applies,
        "bound_rate": theorem.bound.rate if theorem.bound is not None else None,
        "bound_log_rate": theorem.bound.log_rate if theorem.bound is not None else None,
        "bound_least_weight": theorem.bound.least_weight if theorem.bound is not None else None,
        "bound_reason": theorem.reason,
        "hypotheses": [asdict(one) for one in theorem.hypotheses],
        "tail_rate": report.tail_rate,
        "tail_reason": report.tail_reason,
        "certificate": report.certificate,
        "exact": report.exact,
        "ordinary_route_floor": report.floors[0],
        "ordinary_route_floors": report.floors,
        "bound_log10_mu": None if report.bound_log_mu is None else report.bound_log_mu / log(10),
        "layers": report.records,
    }
    if report.kept is not None:
        record["tokens"] = report.kept
    return record


def _cubic(one: dict[str, Any]) -> bool:
    return bool(one["measured"][0]) and one["measured"][0]["law"] == "cubic"


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _show(reports: list[MaskResult], found: list[dict[str, Any]]) -> None:
    rows = [
        {
            "mask": one["mask"]["name"],
            "radius": one["mask"]["radius"],
            "law": one["measured"][0]["law"].replace("exponential", "exp") if one["measured"][0] else None,
            "rate": _short(one["measured_rate"]) if not _cubic(one) else "to 0",
            "theory": _short(one["tail_rate"]),
            "bound": _short(one["bound_rate"]) if one["bound_applies"] else "none",
            "log10_mu": _short(one["layers"][-1]["log10_mu"]),
            "float64 to": _short(one["ordinary_route_floor"]["log10_mu"]),
        }
        for one in found
    ]
    table("Factor per layer by which mu falls", rows)
    paper.print(
        "rate: measured; theory: second eigenvalue of uniform attention; bound: the theorem's;"
        " log10 mu: after the last layer; float64 to: where ordinary code goes wrong.",
        style="dim",
    )
    for one in found:
        if not one["bound_applies"]:
            paper.print(f"{one['mask']['name']}: the theorem does not apply; {one['bound_reason']}", markup=False)
    if not reports[0].exact:
        paper.print("under this norm numbers are those of float64: beyond that column they are rounding noise")
    if len(reports) == 1:
        records = reports[0].records
        step = max(1, (len(records) - 1) // 12)
        chosen = [*records[:-1:step], records[-1]]
        table(f"{reports[0].mask}", chosen, SHOWN)
