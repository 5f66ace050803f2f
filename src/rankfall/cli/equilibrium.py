"""`rankfall equilibrium`: tokens of a wanted rank that a normalised attention layer leaves as they are."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall.catalogue import FAMILIES
from rankfall.cli.output import JsonFlag, PlotPath, emit, notes, paper, shown, table
from rankfall.errors import require

STATEMENT = "B-thm3"


def equilibrium(
    tokens: Annotated[int, typer.Option(help="Number of tokens, N.")] = 8,
    dim: Annotated[int, typer.Option(help="Width of a token, d.")] = 4,
    rank: Annotated[int | None, typer.Option(help="Wanted rank, 1 to min(N, d); full when left out.")] = None,
    stable: Annotated[bool, typer.Option("--stable", help="Strictly stable: nearby tokens return.")] = False,
    family: Annotated[str | None, typer.Option(help=f"{FAMILIES.choices}; the best fit when left out.")] = None,
    norm: Annotated[
        str, typer.Option(help="unit (paper B), layer (LayerNorm, centring too) or another that leaves one length.")
    ] = "unit",
    all_ranks: Annotated[
        bool, typer.Option("--all-ranks", help="One equilibrium of each rank, under ONE layer.")
    ] = False,
    disturb: Annotated[
        float | None, typer.Option(help="Also move the tokens by this much and run the layer.")
    ] = None,
    layers: Annotated[int, typer.Option(help="Layers to run after --disturb.")] = 2000,
    seed: Annotated[int, typer.Option(help="Seed of --disturb.")] = 0,
    polish: Annotated[
        Path | None, typer.Option(help="JSON file with tokens, value, attention: find the equilibrium nearby.")
    ] = None,
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """Build weights and tokens of exactly that rank which LayerNorm and attention leave as they are.

    Example: `rankfall equilibrium --tokens 8 --dim 4 --rank 3 --stable --plot equilibrium.png`
    """
    if all_ranks:
        require(
            rank is None and polish is None and disturb is None,
            required="--all-ranks alone",
            got="--rank, --polish or --disturb beside it",
            remedy="leave those out",
        )
        _all_ranks(tokens, dim, family, norm, stable, plot, json)
    elif polish is not None:
        require(
            rank is None and family is None and not stable and disturb is None,
            required="--polish alone: the file says what the layer is",
            got="--rank, --family, --stable or --disturb beside it",
            remedy="leave those out",
        )
        _polish(polish, plot, json)
    else:
        _build(tokens, dim, rank, family, norm, stable, disturb, layers, seed, plot, json)


def _build(
    count: int,
    width: int,
    rank: int | None,
    family: str | None,
    norm: str,
    stable: bool,
    disturb: float | None,
    layers: int,
    seed: int,
    plot: Path | None,
    as_json: bool,
) -> None:
    import torch

    from rankfall.equilibria.examine import examine_equilibrium, recovery, to_document
    from rankfall.equilibria.families import equilibrium_under, inner_width

    wanted = min(count, inner_width(norm, width)) if rank is None else rank
    with notes.status("building and examining"):
        built = equilibrium_under(norm, count, width, wanted, family=family, stable=stable)
        seen = examine_equilibrium(built)
    result: dict[str, Any] = {
        "statement": STATEMENT,
        "family": built.family,
        "parameters": dict(built.parameters),
        "requested_rank": wanted,
        **seen.record(),
        **to_document(built.layer, built.tokens),
    }
    if disturb is not None:
        with notes.status(f"running {layers} layers"):
            back = recovery(
                built.layer, built.tokens, disturb, layers=layers, generator=torch.Generator().manual_seed(seed)
            )
        result["recovery"] = {**vars(back), "returned": back.returned}
    if plot is not None:
        _draw(built.layer, built.tokens, f"family {built.family}, rank {seen.rank}", plot)
    emit(result, as_json=as_json, show=lambda: _show(result))
    if seen.rank != wanted or (stable and seen.verdict != "stable"):
        raise typer.Exit(1)


def _polish(path: Path, plot: Path | None, as_json: bool) -> None:
    from rankfall.equilibria.examine import examine, read_document, to_document
    from rankfall.equilibria.newton import polish

    layer, start = read_document(path)
    with notes.status("Newton's method"):
        found = polish(layer, start)
        seen = examine(layer, found.tokens)
    result: dict[str, Any] = {
        "statement": STATEMENT,
        "family": None,
        "converged": found.converged,
        "steps": found.steps,
        "moved": found.moved,
        **seen.record(),
        **to_document(layer, found.tokens),
    }
    if plot is not None:
        _draw(layer, found.tokens, f"polished, rank {seen.rank}", plot)
    emit(result, as_json=as_json, show=lambda: _show(result))
    if not found.converged:
        raise typer.Exit(1)


def _all_ranks(
    count: int, width: int, family: str | None, norm: str, stable: bool, plot: Path | None, as_json: bool
) -> None:
    from rankfall.equilibria.examine import ladder
    from rankfall.equilibria.families import check_request

    check_request(count, width, 1)
    with shown("ranks", min(count, width)) as progress:
        rungs = ladder(count, width, family=family, norm=norm, stable=stable, progress=progress)
    layer = rungs[0][0].layer
    rows = [{"requested_rank": built.rank, **seen.record()} for built, seen in rungs]
    result = {
        "statement": STATEMENT,
        "family": rungs[0][0].family,
        "parameters": dict(rungs[0][0].parameters),
        "norm": norm,
        "value": layer.value,
        "attention": layer.attention(rungs[0][0].tokens),
        "ranks": rows,
    }
    if plot is not None:
        from rankfall.drawing.canvas import save
        from rankfall.drawing.equilibrium import draw_ladders

        save(draw_ladders({rungs[0][0].family: rows}), plot)

    def show() -> None:
        columns = (
            "rank",
            "residual",
            "smallest_singular_value",
            "spectral_radius",
            "stability",
            "neutral_directions",
        )
        table(f"equilibria of one layer: family {result['family']}, {count} tokens of width {width}", rows, columns)

    emit(result, as_json=as_json, show=show)
    if any(row["rank"] != row["requested_rank"] for row in rows):
        raise typer.Exit(1)


def _draw(layer: Any, tokens: Any, title: str, path: Path) -> None:
    from rankfall.drawing.canvas import save
    from rankfall.drawing.equilibrium import draw_equilibrium
    from rankfall.equilibria.stability import multipliers

    save(draw_equilibrium(tokens, [values for values, _, _ in multipliers(layer, tokens)], title), path)


def _show(result: dict[str, Any]) -> None:
    shown = ("family", "converged", "residual", "rank", "smallest_singular_value", "spectral_radius", "stability")
    table("equilibrium", [{name: result[name] for name in shown if name in result}])
    for name in ("value", "tokens", "attention"):
        rows = result[name]
        if max(len(rows), len(rows[0])) <= 10:
            table(name, [{str(j + 1): value for j, value in enumerate(row)} for row in rows])
    if "recovery" in result:
        table("after a disturbance", [result["recovery"]])
    elif result["stability"] == "marginal":
        paper.print("marginal: some directions neither return nor leave (multiplier one)", markup=False)
