"""`rankfall plan`: heads and rank for a width, at equal parameters and at equal FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, PlotPath, emit, notes, paper, progress, table
from rankfall.errors import require

EQUAL = {
    ("reference", "parameters", "flops"): "usual",
    ("parameters", "flops"): "both",
    ("parameters",): "weights",
    ("flops",): "FLOPs",
}


def plan(
    dim: Annotated[int, typer.Option(help="Width d of the model.")],
    layers: Annotated[int, typer.Option(help="Number of layers.")] = 12,
    context: Annotated[int, typer.Option(help="Tokens in a sequence.")] = 1024,
    heads: Annotated[
        int | None, typer.Option(help="Heads of the reference, r = d/H; default: head size near 64.")
    ] = None,
    kv_heads: Annotated[int | None, typer.Option(help="Key/value heads, the same for every candidate.")] = None,
    group: Annotated[int, typer.Option(help="Query heads that share one key/value head.")] = 1,
    rank: Annotated[list[int] | None, typer.Option(help="Ranks to compare; repeat the option.")] = None,
    value_rank: Annotated[int | None, typer.Option(help="Hold the value rank at this; default: as the rank.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Feed-forward units; default 4 d, 0 for none.")] = None,
    seconds: Annotated[float, typer.Option(help="Time to spend on measuring, all candidates together.")] = 60.0,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Measure the step time of each candidate.")] = True,
    device: Annotated[str, typer.Option(help="Where to measure: cpu, cuda, cuda:1, ...")] = "cpu",
    store: Annotated[Path | None, typer.Option(help="Add the measured error of trained runs kept here.")] = None,
    task: Annotated[str, typer.Option(help="The task of those runs.")] = "farthest",
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """Candidate (heads, rank) pairs that cost what the usual choice costs: size, FLOPs, cache, floor, step time.

    Example: `rankfall plan --dim 768 --layers 12 --context 1024`
    """
    from rankfall.planning.candidates import Sharing, candidates, default_ranks, reference_shape, usual_heads
    from rankfall.planning.costs import Stopwatch
    from rankfall.planning.table import IMPLICATIONS, accuracy_column, floor_column, timing_column
    from rankfall.planning.table import plan as rows_of

    require(seconds > 0, required="--seconds to be positive", got=seconds, remedy="use --no-time to measure nothing")
    sharing = Sharing(kv_heads, group)
    wide = 4 * dim if hidden is None else hidden
    usual = usual_heads(dim, sharing) if heads is None else heads
    reference = reference_shape(dim, layers, context, usual, wide, sharing)
    chosen = candidates(reference, sharing, rank, value_rank)
    timings = {}
    if time:
        with progress("timing real steps", total=2 * len(chosen)) as advance:
            shapes = [one.shape for one in chosen]
            timings = Stopwatch(seconds, _device(device)).measure(shapes, lambda what, share: advance(1))
    columns = [floor_column, timing_column(timings)]
    if store is not None:
        from rankfall.store.query import rows_of as runs_of
        from rankfall.store.store import Store

        columns.append(accuracy_column(runs_of(Store(store, create=False))[0], task))
    rows = rows_of(chosen, columns)
    result = {
        "dim": dim,
        "layers": layers,
        "context": context,
        "hidden": wide,
        "device": device if time else None,
        "left_out_ranks": [r for r in rank or default_ranks(dim) if r not in {row["rank"] for row in rows}],
        "implications": IMPLICATIONS,
        "candidates": rows,
    }
    if plot is not None:
        from rankfall.drawing.canvas import save
        from rankfall.drawing.plan import draw_plan

        title = f"d = {dim}, {layers} layers, {context} tokens"
        notes.print(f"wrote {save(draw_plan(rows, title), plot)}", markup=False)
    emit(result, as_json=json, show=lambda: _show(result))


def _device(name: str) -> str:
    import torch

    require(
        not name.startswith("cuda") or torch.cuda.is_available(),
        required="a CUDA device for --device cuda",
        got="none on this machine",
        remedy="use --device cpu",
    )
    return name


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


def _show(result: dict[str, Any]) -> None:
    rows = [_short(row) for row in result["candidates"]]
    shared = any(row["kv"] != row["H"] for row in rows)
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows) and (name != "kv" or shared)]
    table(f"d = {result['dim']}, {result['layers']} layers, {result['context']} tokens", rows, columns)
    untimed = sum(row["step_seconds"] is None for row in result["candidates"])
    if result["device"] is not None and untimed:
        paper.print(f"{untimed} rows were not timed for lack of time: raise --seconds.", markup=False)
    for line in (
        "Training FLOPs and step time: forward and backward on one sequence. Decoding: per token. Cache: one "
        "sequence, 2-byte numbers. Weights: attention and feed-forward, no embeddings. Floor: least error of one "
        "layer. Equal: what costs the same as in the usual choice, attention weights or training FLOPs.",
        *(f"No number of heads of rank {rank} costs the same." for rank in result["left_out_ranks"]),
        result["implications"],
    ):
        paper.print(line, markup=False, highlight=False)
