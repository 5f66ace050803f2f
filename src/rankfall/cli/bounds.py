"""`rankfall bounds`: what no heads of a given rank can go below, and how many an error needs."""

from __future__ import annotations

import math
from typing import Annotated, Any

import typer

from rankfall.cli.output import WIDTH, JsonFlag, Outputs, PlotPath, cell, emit, paper, shown, table
from rankfall.errors import require


def bounds(
    width: Annotated[int, typer.Option(*WIDTH, help="Width d of the tokens.")],
    rank: Annotated[
        int | None, typer.Option("--rank", help="Rank r of queries and keys of each head (default: every rank).")
    ] = None,
    heads: Annotated[int | None, typer.Option("--heads", help="Number of heads H: print the lower bound.")] = None,
    error: Annotated[
        float | None, typer.Option("--error", help="Mean squared error: print the heads needed.")
    ] = None,
    points: Annotated[int, typer.Option("--points", help="Number N of orthonormal points to choose from.")] = 2,
    skip: Annotated[bool, typer.Option("--skip", help="The layer also adds a linear map of the query.")] = False,
    generalised: Annotated[
        bool, typer.Option("--generalised", help="Heads may be any map of (K^T X, y) to weights, not only softmax.")
    ] = False,
    values: Annotated[
        str, typer.Option("--values", help="Value matrices: matrix (any) or scalar (multiples of the identity).")
    ] = "matrix",
    target: Annotated[
        str, typer.Option("--target", help="Target: nearest, or biased (the oscillating target).")
    ] = "nearest",
    value_norm: Annotated[
        float | None, typer.Option("--value-norm", help="Largest ||V||, for what A-thm4 says (target biased).")
    ] = None,
    kv_latent: Annotated[
        int, typer.Option("--kv-latent", help="Keys come from a latent of this size; --rank is then the head size.")
    ] = 0,
    q_latent: Annotated[int, typer.Option("--q-latent", help="Queries come from a latent of this size.")] = 0,
    rope_dims: Annotated[
        int, typer.Option("--rope-dims", help="Part of the key that does not come from its latent.")
    ] = 0,
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """Lower bounds on the error of one bare layer of low-rank heads, as numbers, with their hypotheses.

    Example: `rankfall bounds --width 64 --rank 8 --error 0.05`, or `rankfall bounds --width 64 --plot floors.png`

    Quick: `rankfall bounds --width 64 --rank 8 --error 0.05`, or `rankfall bounds --width 12 --plot floors.png`
    """
    from rankfall.api.bounds import bounds as run

    require(
        rank is not None or plot is not None,
        required="--rank with --heads or --error, or --plot for every rank",
        got="neither --rank nor --plot",
        remedy="for example --rank 8 --error 0.05",
    )
    require(
        rank is None or plot is not None or heads is not None or error is not None,
        required="--heads, --error or --plot beside --rank",
        got="none of them",
        remedy="--heads gives the lower bound, --error the heads needed",
    )
    outputs = Outputs(plot=plot)
    with shown(f"bounds at d = {width}"):
        result = run(
            width,
            rank,
            heads=heads,
            error=error,
            points=points,
            skip=skip,
            generalised=generalised,
            values=values,
            target=target,
            value_norm=value_norm,
            kv_latent=kv_latent,
            q_latent=q_latent,
            rope_dims=rope_dims,
        )
        record = result.record()
    if plot is not None:
        record["plot"] = str(plot)
    emit(record, as_json=json, show=lambda: _show(record))
    outputs.write(result)


def _show(result: dict[str, Any]) -> None:
    if "ranks" in result:
        table(
            f"heads needed at d = {result['dim']}",
            [{k: _whole(v) for k, v in row.items()} for row in result["ranks"]],
        )
    if "head_size" in result:
        given = f"query latent {result['q_latent'] or 'none'}, key latent {result['kv_latent'] or 'none'}"
        paper.print(
            f"a head of size {result['head_size']} can have rank {result['rank']} ({given},"
            f" {result['rope_dims']} rotary dimensions beside it)",
            markup=False,
        )
    if "mse_lower_bound" in result:
        floor = cell(result["mse_lower_bound"])
        count = "1 head" if result["heads"] == 1 else f"{result['heads']} heads"
        paper.print(f"{count} of rank {result['rank']}, d = {result['dim']}: error at least [bold]{floor}[/bold]")
    if "heads_needed" in result:
        exact = result["heads_needed"]
        needed = _scientific(result["log10_heads_needed"]) if exact is None else _whole(exact)
        asked = f"error {result['error']:g} with rank {result['rank']}, d = {result['dim']}"
        paper.print(f"{asked}: at least [bold]{needed}[/bold] heads")
    if result.get("vacuous"):
        paper.print("vacuous here: the bound excludes nothing")
    if "baseline" in result:
        paper.print(f"the bound at H = 0: {cell(result['baseline'])} (a layer without heads has a larger error)")
    if "norm_statement" in result:
        said = result["norm_statement"]
        paper.print(
            f"A-thm4: log(d H max||V||^2) = {cell(said['log_d_heads_norm_squared'])}; error stays above 1/40 if the"
            f" statement's c, which is not given, exceeds {cell(said['deciding_constant'])}",
            markup=False,
        )
    paper.print(f"makes concrete: {result['statement']}\nby: {result['method']}\nholds for:", markup=False)
    for line in result["hypotheses"]:
        paper.print(f"  - {line}", markup=False)


def _whole(count: int) -> str:
    """A head count: exact below ten million, four digits above."""
    return str(count) if count < 10**7 else _scientific(math.log10(count))


def _scientific(log10: float) -> str:
    digits = math.floor(log10)
    return f"{10 ** (log10 - digits):.3f}e{digits}"
