"""`rankfall plan`: heads and rank for a width, at equal parameters and at equal FLOPs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.catalogue import TASKS
from rankfall.cli.output import WIDTH, JsonFlag, Outputs, PlotPath, emit, paper, shown, table
from rankfall.errors import require_count

if TYPE_CHECKING:
    from rankfall.api.plan import PlanResult

FEED_FORWARD = ("gated", "plain", "none")
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
    heads: Annotated[int | None, typer.Option(help="Heads of the usual choice (default: head size near 64).")] = None,
    head_size: Annotated[int | None, typer.Option(help="Rank of the usual choice's heads (default: d/H).")] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key/value heads, the same for every candidate (default: as many as heads).")
    ] = None,
    group: Annotated[int, typer.Option(help="Query heads that share one key/value head.")] = 1,
    rank: Annotated[
        list[int] | None, typer.Option(help="Rank to compare; repeat for several (default: all that divide well).")
    ] = None,
    value_rank: Annotated[int | None, typer.Option(help="Value rank of every candidate (default: its rank).")] = None,
    feed_forward: Annotated[
        str,
        typer.Option(
            help="Feed-forward block: gated (three maps, as in Llama), plain (two, as in GPT-2) or none.",
            autocompletion=lambda incomplete: [one for one in FEED_FORWARD if one.startswith(incomplete)],
        ),
    ] = "gated",
    hidden: Annotated[
        int | None, typer.Option(help="Feed-forward units (default 3.5 d gated, 4 d plain); of experts, the active.")
    ] = None,
    window: Annotated[int | None, typer.Option(help="Tokens that a windowed layer sees and caches.")] = None,
    windowed: Annotated[
        int | None, typer.Option("--windowed-layers", help="Layers that have the window (default: all).")
    ] = None,
    shared: Annotated[
        int, typer.Option("--shared-layers", help="Layers that use the keys and values of an earlier layer.")
    ] = 0,
    shared_windowed: Annotated[
        int | None,
        typer.Option("--shared-windowed-layers", help="How many of those have the window (default: in proportion)."),
    ] = None,
    kv_latent: Annotated[
        int, typer.Option(help="Keys and values come from one vector of this size per token (MLA); 0: directly.")
    ] = 0,
    q_latent: Annotated[int, typer.Option(help="Queries come from a vector of this size; 0: directly.")] = 0,
    rope_dims: Annotated[
        int, typer.Option(help="Part of the key, with rotary positions, that all heads share beside the latent.")
    ] = 0,
    directions: Annotated[
        int | None,
        typer.Option(help="Directions that a match must compare; trained matches then decide, not language models."),
    ] = None,
    most_cache: Annotated[
        float, typer.Option(help="Cache that the recommended row may have, over the usual one.")
    ] = 1.1,
    seconds: Annotated[float, typer.Option(help="Seconds to spend on measuring, all candidates together.")] = 60.0,
    time: Annotated[bool, typer.Option("--time/--no-time", help="Measure the step time of each candidate.")] = True,
    device: Annotated[str, typer.Option(help="Where to measure: cpu, cuda, cuda:1, ...")] = "cpu",
    store: Annotated[
        Path | None,
        typer.Option(
            help="Store of your own runs: adds their errors; its language models go before those that ship."
        ),
    ] = None,
    results: Annotated[
        Path | None, typer.Option(help="The same from results that `rankfall runs --export-results` wrote.")
    ] = None,
    task: Annotated[
        str, typer.Option(help=f"Task of those runs: {TASKS.choices}.", autocompletion=TASKS.complete)
    ] = "farthest",
    plot: PlotPath = None,
    json: JsonFlag = False,
) -> None:
    """Heads and rank at equal cost: size, FLOPs, cache, bound, trained errors, step time, and a recommendation.

    Example: `rankfall plan --width 768 --layers 12 --context 1024`

    Quick: `rankfall plan --width 768 --layers 12 --context 1024 --no-time`
    """
    from rankfall.api.plan import plan as run
    from rankfall.planning.costs import MOST_WIDTH

    require_count("--width", width, least=2, most=MOST_WIDTH)
    outputs = Outputs(plot=plot)
    with shown("planning") as progress:
        result = run(
            width,
            layers=layers,
            context=context,
            heads=heads,
            head_size=head_size,
            kv_heads=kv_heads,
            group=group,
            rank=rank,
            value_rank=value_rank,
            feed_forward=feed_forward,
            hidden=hidden,
            window=window,
            windowed=windowed,
            shared=shared,
            shared_windowed=shared_windowed,
            kv_latent=kv_latent,
            q_latent=q_latent,
            rope_dims=rope_dims,
            directions=directions,
            most_cache=most_cache,
            seconds=seconds,
            time=time,
            device=device,
            store=store,
            results=results,
            task=task,
            progress=progress,
        )
    emit(result.record(), as_json=json, show=lambda: _show(result))
    outputs.write(result)


def _short(row: dict[str, Any]) -> dict[str, Any]:
    seconds, measured, trained = row["step_seconds"], row.get("mse_measured"), row["trained_error"]
    ranged = f"{row['trained_error_low']:.2f} to {row['trained_error_high']:.2f}" if trained is not None else None
    return {
        "": "->" if row["recommended"] else "",
        "H": row["heads"],
        "r": str(row["rank"])
        if row["structural_rank"] == row["rank"]
        else f"{row['rank']} ({row['structural_rank']})",
        "kv": row["kv_heads"],
        "text loss": None if row["text_excess"] is None else f"{row['text_excess']:+.2%}",
        "trained error": None if trained is None else f"{trained:.3f}",
        "range": ranged,
        "cache MiB": f"{row['kv_cache_bytes'] / 2**20:.4g}",
        "bound": f"{row['mse_lower_bound_with_skip']:.4f}",
        "equal": EQUAL[tuple(row["equal"])],
        "step s": None if seconds is None else f"{seconds:.3g}",
        "in store": None if measured is None else f"{measured:.4f}",
        "params M": f"{row['parameters'] / 1e6:.1f}",
        "train TFLOP": f"{row['flops'] / 1e12:.3g}",
        "decode GFLOP": f"{row['decoding_flops'] / 1e9:.3g}",
        "whole": None if trained is None else f"{row['trained_error_whole']:.3f}",
    }


def _show(result: PlanResult) -> None:
    rows = [_short(row) for row in result.candidates]
    shared = any(row["kv"] != row["H"] for row in rows)
    columns = [name for name in rows[0] if any(row[name] is not None for row in rows) and (name != "kv" or shared)]
    table(result.title, rows, columns)
    untimed = sum(row["step_seconds"] is None for row in result.candidates)
    if result.device is not None and untimed:
        paper.print(f"{untimed} rows were not timed for lack of time: raise --seconds.", markup=False)
    paper.print(f"Recommended: {result.recommendation['words']}.", style="bold", markup=False, highlight=False)
    if result.keys_and_values:
        paper.print(f"Attention: {result.keys_and_values}.", markup=False, highlight=False)
    for line in result.reasons():
        paper.print(f"- {line}", markup=False, highlight=False)
    narrow = any(row["structural_rank"] < row["rank"] for row in result.candidates)
    for line in (
        *(["In brackets: the rank that a head of this size can have behind these latents."] if narrow else []),
        *(f"No number of heads of rank {rank} costs the same." for rank in result.left_out_ranks),
        f"Trained error: in matches of {result.directions} directions (whole: of all {result.width}). "
        f"{result.evidence['trained_error']}",
        f"Text loss: what language models lose over the best rank. {result.evidence['text_excess']}",
        f"Bound: with a skip connection. {result.implications}",
        "Training FLOPs and step time: forward and backward on one sequence. Decoding: per token. Cache: one "
        f"sequence, 2-byte numbers. Params: attention and {result.feed_forward} feed-forward ({result.hidden} "
        "units), no embeddings. Equal: what costs the same as in the usual choice, attention weights or FLOPs.",
    ):
        paper.print(line, markup=False, highlight=False)
