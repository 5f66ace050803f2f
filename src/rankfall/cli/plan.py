"""`rankfall plan`: heads and rank for a width, at equal parameters and at equal FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.catalogue import TASKS
from rankfall.cli.output import WIDTH, JsonFlag, PlotPath, emit, paper, shown, table, write_files

if TYPE_CHECKING:
    from rankfall.api.plan import PlanResult

EQUAL = {
    ("reference", "parameters", "flops"): "usual",
    ("parameters", "flops"): "both",
    ("parameters",): "weights",
    ("flops",): "FLOPs",
}


def plan(
    width: Annotated[int, typer.Option(*WIDTH, help="Width d of the model.")],
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 12,
    context: Annotated[int, typer.Option(help="Number of tokens in a sequence.")] = 1024,
    heads: Annotated[
        int | None, typer.Option(help="Heads of the reference, r = d/H (default: head size near 64).")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key/value heads, the same for every candidate (default: as many as heads).")
    ] = None,
    group: Annotated[int, typer.Option(help="Query heads that share one key/value head.")] = 1,
    rank: Annotated[
        list[int] | None, typer.Option(help="Rank to compare; repeat for several (default: all that divide well).")
    ] = None,
    value_rank: Annotated[int | None, typer.Option(help="Value rank of every candidate (default: its rank).")] = None,
    hidden: Annotated[int | None, typer.Option(help="Feed-forward units, 0 for none (default 4 d).")] = None,
    seconds: Annotated[float, typer.Option(help="Seconds to spend on measuring, all candidates together.")] = 60.0,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Measure the step time of each candidate.")] = True,
    device: Annotated[str, typer.Option(help="Where to measure: cpu, cuda, cuda:1, ...")] = "cpu",
    store: Annotated[Path | None, typer.Option(help="Add the measured error of trained runs kept here.")] = None,
    task: Annotated[
        str, typer.Option(help=f"Task of those runs: {TASKS.choices}.", autocompletion=TASKS.complete)
    ] = "farthest",
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """Candidate (heads, rank) pairs that cost what the usual choice costs: size, FLOPs, cache, floor, step time.

    Example: `rankfall plan --width 768 --layers 12 --context 1024`

    Quick: `rankfall plan --width 768 --layers 12 --context 1024 --no-time`
    """
    from rankfall.api.plan import plan as run

    with shown("planning") as progress:
        result = run(
            width,
            layers=layers,
            context=context,
            heads=heads,
            kv_heads=kv_heads,
            group=group,
            rank=rank,
            value_rank=value_rank,
            hidden=hidden,
            seconds=seconds,
            time=time,
            device=device,
            store=store,
            task=task,
            progress=progress,
        )
    write_files(result, plot=plot)
    emit(result.record(), as_json=json, show=lambda: _show(result))


def _short(row: dict[str, Any]) -> dict[str, Any]:
    seconds, measured = row["step_seconds"], row.get("mse_measured")
    return {
        "H": row["heads"],
        "r": row["rank"],
        "kv": row["kv_heads"],
        "equal": EQUAL[tuple(row["equal"])],
        "params M": f"{row['parameters'] / 1e6:.1f}",
        "train TFLOP": f"{row['flops'] / 1e12:.3g}",
        "decode GFLOP": f"{row['decoding_flops'] / 1e9:.3g}",
        "cache MiB": f"{row['kv_cache_bytes'] / 2**20:.4g}",
        "floor": f"{row['mse_lower_bound']:.4f}",
        "step s": None if seconds is None else f"{seconds:.3g}",
        "trained error": None if measured is None else f"{measured:.4f}",
    }


def _show(result: PlanResult) -> None:
    rows = [_short(row) for row in result.candidates]
    shared = any(row["kv"] != row["H"] for row in rows)
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows) and (name != "kv" or shared)]
    table(result.title, rows, columns)
    untimed = sum(row["step_seconds"] is None for row in result.candidates)
    if result.device is not None and untimed:
        paper.print(f"{untimed} rows were not timed for lack of time: raise --seconds.", markup=False)
    for line in (
        "Training FLOPs and step time: forward and backward on one sequence. Decoding: per token. Cache: one "
        "sequence, 2-byte numbers. Weights: attention and feed-forward, no embeddings. Floor: least error of one "
        "layer. Equal: what costs the same as in the usual choice, attention weights or training FLOPs.",
        *(f"No number of heads of rank {rank} costs the same." for rank in result.left_out_ranks),
        result.implications,
    ):
        paper.print(line, markup=False, highlight=False)
