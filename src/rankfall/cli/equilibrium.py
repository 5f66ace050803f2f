"""`rankfall equilibrium`: tokens of a wanted rank that a normalised attention layer leaves as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall.catalogue import FAMILIES
from rankfall.cli.output import WIDTH, JsonFlag, Outputs, PlotPath, emit, paper, shown, table

MEASURED = ("smallest_singular_value", "spectral_radius", "transient_growth", "stability")
FACTS = ("family", "converged", "residual", "rank", *MEASURED)
BY_RANK = ("rank", "residual", *MEASURED, "neutral_directions")
# Larger matrices do not fit a terminal.
MOST_SHOWN = 10


def equilibrium(
    tokens: Annotated[int, typer.Option(help="Number of tokens.")] = 8,
    width: Annotated[int, typer.Option(*WIDTH, help="Width of a token.")] = 4,
    rank: Annotated[int | None, typer.Option(help="Rank, at most min(tokens, width) (default full).")] = None,
    stable: Annotated[bool, typer.Option("--stable", help="Strictly stable: nearby tokens return.")] = False,
    family: Annotated[
        str | None,
        typer.Option(help=f"Family: {FAMILIES.choices} (default: the best fit).", autocompletion=FAMILIES.complete),
    ] = None,
    norm: Annotated[
        str,
        typer.Option(help="Norm: unit (paper B), layer (LayerNorm, centring too), rms, dyt (tanh), or layer-scaled."),
    ] = "unit",
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", help="One equilibrium of each rank, under ONE layer.")
    ] = False,
    disturb: Annotated[
        float | None, typer.Option(help="Also move the tokens by this much and run the layer.")
    ] = None,
    every_layer: Annotated[bool, typer.Option("--every-layer", help="Disturb before every layer, not once.")] = False,
    draws: Annotated[int, typer.Option(help="Number of disturbances to draw (default 20).", show_default=False)] = 20,
    layers: Annotated[int, typer.Option(help="Number of layers to run after --disturb.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of --disturb.")] = 0,
    polish: Annotated[
        Path | None, typer.Option(help="JSON file with tokens, value, attention: find the equilibrium nearby.")
    ] = None,
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """Build weights and tokens of exactly that rank which LayerNorm and attention leave as they are.

    Example: `rankfall equilibrium --tokens 8 --width 4 --rank 3 --stable --plot equilibrium.png`
    """
    from rankfall.api.equilibrium import equilibrium as run

    outputs = Outputs(plot=plot)
    with shown("equilibrium") as progress:
        result = run(
            tokens,
            width,
            rank,
            stable=stable,
            family=family,
            norm=norm,
            all_ranks=all_ranks,
            disturb=disturb,
            every_layer=every_layer,
            draws=draws,
            layers=layers,
            seed=seed,
            polish=polish,
            progress=progress,
        )
    record = result.record()

    def show() -> None:
        if all_ranks:
            of = f"family {record['family']}, {tokens} tokens of width {width}"
            table(f"equilibria of one layer: {of}", record["ranks"], BY_RANK)
        else:
            _show(record)

    emit(record, as_json=json, show=show)
    outputs.write(result)
    if not result.as_asked:
        raise typer.Exit(1)


def _show(record: dict[str, Any]) -> None:
    table("equilibrium", [{name: record[name] for name in FACTS if name in record}])
    for name in ("value", "tokens", "attention"):
        rows = record[name]
        if max(len(rows), len(rows[0])) <= MOST_SHOWN:
            table(name, [{str(j + 1): value for j, value in enumerate(row)} for row in rows])
    if "recovery" in record:
        from rankfall.api.equilibrium import disturbance_sentence

        paper.print(disturbance_sentence(record["recovery"]), markup=False)
    elif record["stability"] == "stable":
        from rankfall.api.equilibrium import basin_sentence

        if told := basin_sentence(record["transient_growth"]):
            paper.print(told, markup=False)
    elif record["stability"] == "marginal":
        paper.print("marginal: some directions neither return nor leave (multiplier one)", markup=False)
