"""`rankfall simulate`: what depth does to tokens, exactly, with the theorem's rate beside the measured one."""

from __future__ import annotations

from math import expm1
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.catalogue import MASKS, NORMS
from rankfall.cli.output import WIDTH, JsonFlag, Outputs, PlotPath, emit, paper, shown, table

if TYPE_CHECKING:
    from rankfall.api.simulate import SimulationResult

UNIT = "log10_unit_relative_mu"
SHARE_LAYERS = (1, 4, 16, 64, 256)
SHOWN = ("layer", "log10_mu", "log10_relative_mu", "rank", "effective_rank", "energy_rank", "mean_abs_cosine")


def simulate(
    mask: Annotated[
        list[str] | None,
        typer.Option(
            help=f"Mask: {MASKS.choices}; or a schedule such as window:4+dilated:4:4. Repeat to compare masks"
            " (default: five of them).",
            autocompletion=MASKS.complete,
        ),
    ] = None,
    norm: Annotated[str, typer.Option(help=f"Norm: {NORMS.choices}.", autocompletion=NORMS.complete)] = "none",
    value: Annotated[
        str, typer.Option(help="Value weights: identity, orthogonal, gaussian or counterexample.")
    ] = "orthogonal",
    query_key: Annotated[
        str | None,
        typer.Option(help="Query and key weights: random, xavier, orthogonal or zero (default random)."),
    ] = None,
    tokens: Annotated[
        int | None, typer.Option(help="Number of tokens (default 64; 2 in the counterexample).")
    ] = None,
    width: Annotated[
        int | None, typer.Option(*WIDTH, help="Width of a token (default 32; 2 in the counterexample).")
    ] = None,
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 400,
    temperature: Annotated[float, typer.Option(help="Scores are divided by this times sqrt(head rank).")] = 1.0,
    heads: Annotated[int, typer.Option(help="Number of heads; each has its own weights and rank width / heads.")] = 1,
    residual: Annotated[float, typer.Option(help="Share of the old tokens that each layer adds.")] = 0.0,
    placement: Annotated[str, typer.Option(help="Place of the norm: post, pre or peri (both sides).")] = "post",
    sink: Annotated[
        float | None, typer.Option(help="Logit of a learned sink in every softmax (0: off-by-one; default: none).")
    ] = None,
    per_layer: Annotated[bool, typer.Option("--per-layer", help="Draw new weights in every layer.")] = False,
    seed: Annotated[int, typer.Option(help="First seed of weights and tokens.")] = 0,
    seeds: Annotated[int, typer.Option(help="Number of seeds; with several, the table shows medians.")] = 1,
    thin: Annotated[int, typer.Option(help="Report every so many layers.")] = 1,
    keep_tokens: Annotated[
        bool, typer.Option("--keep-tokens", help="Put the tokens themselves into the JSON.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="Device: cpu or cuda (default: a GPU for large runs, where there is one).")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table of all layers and masks into this file.")] = None,
    plot: PlotPath = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a report with its tables and pictures.")] = None,
    json: JsonFlag = False,
) -> None:
    """Run tokens through attention layers and follow their collapse, exactly far below machine precision.

    Without --mask, several masks are compared. With --json, the first mask's result is at the top level and further
    masks are listed under `others`.

    Example: `rankfall simulate --mask window:16 --tokens 64 --width 32 --layers 2000 --plot window.png`

    Quick: `rankfall simulate --mask window:4 --tokens 12 --width 4 --layers 60 --plot window.png`
    """
    from rankfall.api.simulate import simulate as run

    outputs = Outputs(plot=plot, csv=csv, out=out)
    with shown("simulating") as progress:
        result = run(
            mask,
            norm,
            value=value,
            query_key=query_key,
            tokens=tokens,
            width=width,
            layers=layers,
            temperature=temperature,
            heads=heads,
            residual=residual,
            placement=placement,
            sink=sink,
            per_layer=per_layer,
            seed=seed,
            seeds=seeds,
            thin=thin,
            keep_tokens=keep_tokens,
            device=device,
            progress=progress,
        )
    emit(result.record(), as_json=json, show=lambda: _show(result))
    outputs.write(result)


def _short(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"


def _factor(value: float | None, log: float | None = None) -> str:
    """A factor per layer; of one that rounds to 1, what it lacks."""
    lacks = 0.0 if value is None else 1 - value if log is None else -expm1(log)
    return f"1 - {lacks:.0e}" if 0 < lacks < 5e-5 else _short(value)


def _row(one: dict[str, Any]) -> dict[str, Any]:
    measured = one["measured"][0]
    cubic = bool(measured) and (measured["law"] == "cubic" or measured["rate"] == 0)
    return {
        "mask": one["mask"]["name"],
        "radius": one["mask"]["radius"],
        "law": measured["law"].replace("exponential", "exp") if measured else None,
        "rate": "to 0" if cubic else _factor(one["measured_rate"]),
        "theory": _factor(one["tail_rate"]),
        **({} if one["shrink_rate"] is None else {"shrinks": _short(one["shrink_rate"])}),
        "bound": _factor(one["bound_rate"], one["bound_log_rate"]) if one["bound_applies"] else "none",
        "log10_mu": _short(one["layers"][-1]["log10_mu"]),
        "float64 to": _short(one["ordinary_route_floor"]["log10_mu"]),
    }


def _show(result: SimulationResult) -> None:
    record = result.record()
    found = [record, *record["others"]]
    sunk = UNIT in result.layers[0]
    table(f"Factor per layer by which {'unit relative mu' if sunk else 'mu'} falls", [_row(one) for one in found])
    theory = "second eigenvalue of uniform attention"
    several_maps = result.settings["heads"] > 1 and result.settings["value"] != "identity"
    if several_maps or result.settings["value"] in ("gaussian", "counterexample") or result.settings["residual"]:
        theory += " with values and residual"
    if sunk:
        theory += " with the sink, over the first, by which all tokens shrink"
    paper.print(
        f"rate: measured; theory: {theory}; bound: the theorem's;"
        " log10 mu: after the last layer; float64 to: where ordinary code goes wrong.",
        style="dim",
    )
    if result.settings["sink"] is not None and not sunk:
        paper.print("the norm gives every token its length back, so that the sink changes nothing")
    if not record["exact"]:
        several = sunk and result.settings["heads"] > 1
        why = "with several heads under a sink" if several else "under this norm"
        paper.print(f"{why} numbers are those of float64: beyond that column they are rounding noise")
    if (seeds := len(result.settings["seeds"])) > 1:
        first = result.settings["seeds"][0]
        paper.print(
            f"law, rate, theory, bound and float64 are those of seed {first}; all else: medians of {seeds} seeds"
        )
    for said, masks in _reasons(found).items():
        paper.print(f"{', '.join(masks)}: {said}", markup=False)
    shares = [row for one in found for row in _first_token_rows(one)]
    if shares:
        table("Share of the first token in all tokens, attention by positions alone", shares)
    if len(found) == 1:
        records = result.layers
        step = max(1, (len(records) - 1) // 12)
        columns = [*SHOWN[:2], UNIT, *SHOWN[3:]] if sunk else SHOWN
        table(result.mask, [*records[:-1:step], records[-1]], columns)


def _reasons(found: list[dict[str, Any]]) -> dict[str, list[str]]:
    """What theorem and theory do not say and why, each sentence once, with the masks it is about."""
    said: dict[str, list[str]] = {}
    for one in found:
        name = one["mask"]["name"]
        if not one["bound_applies"]:
            said.setdefault(f"the theorem does not apply; {one['bound_reason']}", []).append(name)
        if one["tail_reason"]:
            none = "no rate by theory; " if one["tail_rate"] is None else ""
            said.setdefault(f"{none}{one['tail_reason']}", []).append(name)
    return said


def _first_token_rows(one: dict[str, Any]) -> list[dict[str, Any]]:
    """A line of a mask for uniform attention and one for rotary decay, the depths side by side."""
    rows = [row for row in one["first_token"] if row["layer"] in SHARE_LAYERS]
    return [
        {"mask": one["mask"]["name"], "attention": name}
        | {f"layer {row['layer']}": None if row[key] is None else f"{row[key]:.1%}" for row in rows}
        for name, key in (("uniform", "carried"), ("rotary", "rotary_carried"))
        if rows
    ]
