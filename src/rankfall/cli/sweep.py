"""`rankfall sweep`: train every cell of a grid that the store lacks."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rankfall.catalogue import ENGINES
from rankfall.cli.output import JsonFlag, Outputs, PlotPath, cell, duration, emit, notes, paper, shown, table
from rankfall.cli.runs import run_table, varying_settings
from rankfall.destinations import require_writable_folder
from rankfall.errors import require

if TYPE_CHECKING:
    from rankfall.api.sweep import SweepResult

SHAPE = ("rank", "heads")
"""Of a language model, shown also where all have the same."""
USUAL = {"value_rank": "rank", "key_heads": "heads"}
"""Settings that say nothing of their own where they equal another throughout."""
BY_SHAPE = (
    "seeds", "nats_per_byte", "nats_per_byte_margin", "excess", "excess_margin", "parameters", "step_seconds",
)  # fmt: skip
COMMON = ("task", "dim", "width", "layers", "steps", "key_heads", "value_rank", "tokens", "passes")
"""Of a plan, told once where all rows agree in it."""
TO_LEVEL = ("level", "tokens", "seconds")
AUDITED = (
    "nats_per_byte", "head_rank_used", "head_rank_needed", "token_rank_last",
    "attention_entropy", "first_token_mass", "mse_lower_bound", "synthetic_error", "missing",
)  # fmt: skip


def sweep(
    grid: Annotated[str, typer.Argument(help="A TOML file, or a shipped grid by name, such as smoke.")],
    store: Annotated[Path, typer.Option(help="Folder that keeps the runs.")] = Path("runs"),
    engine: Annotated[
        str, typer.Option(help=f"Where to train: {ENGINES.choices}.", autocompletion=ENGINES.complete)
    ] = "local",
    address: Annotated[str | None, typer.Option(help="Address of a running Ray cluster.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show plan and estimate; train nothing.")] = False,
    device: Annotated[str, typer.Option(help="Device: auto, cpu, cuda or cuda:1.")] = "auto",
    max_stack: Annotated[
        int | None, typer.Option(help="Most cells in one program (default: as many as fit).")
    ] = None,
    memory: Annotated[
        float | None, typer.Option(help="Memory that one stack may take, in GiB (default: all that is free).")
    ] = None,
    threads: Annotated[
        int | None,
        typer.Option(help="Processor threads of a training process (default: as many as its steps pay for)."),
    ] = None,
    compile: Annotated[bool | None, typer.Option(help="Compile the step (default: on GPUs).")] = None,
    tf32: Annotated[bool, typer.Option(help="Matrix products in TF32 on GPUs: faster, coarser.")] = True,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds of training between two checkpoints.")] = 60.0,
    results: Annotated[Path | None, typer.Option(help="Committed results to go on from.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Train also cells imported without weights.")] = False,
    take_over: Annotated[
        bool, typer.Option("--take-over", help="Take cells that a process of another machine claimed, if it is gone.")
    ] = False,
    tensorboard: Annotated[Path | None, typer.Option(help="Folder for TensorBoard logs.")] = None,
    text: Annotated[
        Path | None, typer.Option(help="File or folder of text that cells of the task text are trained on.")
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="File or folder of text to measure on (default: part of --text is held out).")
    ] = None,
    where: Annotated[
        list[str] | None, typer.Option(help="Only some cells, such as layers=3,5; several must all hold.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Stop after so many, with everything saved; the same command goes on.")
    ] = None,
    audit: Annotated[
        bool, typer.Option(help="Audit each language model on held-out text, once: head rank, token rank, attention.")
    ] = True,
    to_loss: Annotated[
        float | None,
        typer.Option(help="Nats per byte to which tokens and time are counted (default: what all models reach)."),
    ] = None,
    plot: PlotPath = None,
    out: Annotated[Path | None, typer.Option(help="Folder for a report with its tables and pictures.")] = None,
    json: JsonFlag = False,
) -> None:
    """Train every cell of a grid that the store lacks, many at once; kill it and run it again to go on.

    Example: `rankfall sweep grids/smoke.toml --store runs`

    Quick: `rankfall sweep smoke --store runs --dry-run`
    """
    from rankfall.api.sweep import sweep as run

    if not dry_run or store.exists():
        require_writable_folder(store, "--store")
    if tensorboard is not None:
        require_writable_folder(tensorboard, "--tensorboard")
    require(
        not dry_run or (plot is None and out is None),
        required="a sweep that trains, for a picture or a report of it",
        got="--dry-run beside " + ("--plot" if out is None else "--out"),
        remedy="leave one of them out",
    )
    outputs = Outputs(plot=plot, out=out)
    with shown(grid) as progress:
        result = run(
            grid,
            store=store,
            engine=engine,
            address=address,
            dry_run=dry_run,
            device=device,
            max_stack=max_stack,
            memory=memory,
            threads=threads,
            compile=compile,
            tf32=tf32,
            checkpoint_seconds=checkpoint_seconds,
            results=results,
            weights=weights,
            take_over=take_over,
            tensorboard=tensorboard,
            text=text,
            validation=validation,
            where=where or (),
            minutes=minutes,
            audit=audit,
            to_loss=to_loss,
            progress=progress,
            note=lambda text: notes.print(text, markup=False, soft_wrap=True),
        )
    if not result.complete:
        done = sum(row["status"] != "missing" for row in result.runs)
        again = ["rankfall", "sweep", grid, "--store", str(store)]
        again += [word for condition in where or () for word in ("--where", condition)]
        again += [] if text is None else ["--text", str(text)]
        again += [] if validation is None else ["--validation", str(validation)]
        again += [] if audit else ["--no-audit"]
        notes.print(
            f"stopped with {done} of {len(result.runs)} cells finished and the rest saved; the same command goes on: "
            f"{shlex.join(again)}",
            markup=False,
            soft_wrap=True,
        )
        if not result.out_of_time:
            raise typer.Exit(130)
    emit(result.record(), as_json=json, show=lambda: _show_plan(result) if dry_run else _show(result, to_loss))
    outputs.write(result)


def _show(result: SweepResult, to_loss: float | None = None) -> None:
    run_table(f"{result.grid}: {len(result.runs)} cells", result.runs)
    if result.by_shape:
        table("nats per byte of held-out text, by shape", _brief(result.by_shape, BY_SHAPE))
    if result.to_level:
        level = "the loss that all models of a setting reach" if to_loss is None else f"{to_loss:g} nats per byte"
        table(f"tokens and seconds to {level}", _brief(result.to_level, TO_LEVEL))
    if result.audits:
        table("audits on held-out text, a row per model", _brief(result.audits, AUDITED))
    for sentence in [*result.verdicts, *result.findings]:
        paper.print(sentence, markup=False, soft_wrap=True)
    rest = f"all are in {result.store}" if result.complete else f"those that are finished are in {result.store}"
    paper.print(
        f"{result.trained} trained now in {result.seconds:.0f} s; {rest}",
        markup=False,
        soft_wrap=True,
    )


def _brief(records: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """Rank, heads, every setting that tells records apart, and these columns, but for those that are empty
    throughout or the same as another."""
    columns = dict.fromkeys((*varying_settings(records, SHAPE), *names))
    usual = _usual(records, USUAL)
    kept = [name for name in columns if name not in usual and any(one.get(name) is not None for one in records)]
    return [{name: _digits(name, record.get(name)) for name in kept} for record in records]


def _usual(records: Sequence[Mapping[str, Any]], same: Mapping[str, str]) -> list[str]:
    """The settings that equal another in all records."""
    return [name for name, other in same.items() if all(str(one.get(name)) == str(one.get(other)) for one in records)]


def _digits(name: str, value: Any) -> Any:
    if name == "corpus":
        return str(value)[:8]
    if not isinstance(value, float):
        return value
    if name.startswith("excess"):
        return f"{value:.1%}"
    if name.startswith("nats_per_byte"):
        return round(value, 4)
    return round(value) if value >= 1e4 else float(f"{value:.4g}")


def _three(name: str, value: Any) -> Any:
    if name == "corpus":
        return _digits(name, value)
    return float(f"{value:.3g}") if isinstance(value, float) else value


def _show_plan(result: SweepResult) -> None:
    of, rest = result.record(), "nothing is missing"
    if of["stacks"]:
        _show_stacks(of["stacks"])
        seconds = float("nan") if of["seconds_estimated"] is None else of["seconds_estimated"]
        rest = f"the rest takes about {duration(seconds)} (from {of['estimate_from']})"
        if any("text" in stack["task"] for stack in of["stacks"]):
            rest += ", audits besides"
    paper.print(f"{of['finished']} of {of['cells']} cells are finished; {rest}", soft_wrap=True)


def _show_stacks(stacks: Sequence[Mapping[str, Any]]) -> None:
    """What all have in common stands below the table once: a row is for what it has of its own."""
    names = dict.fromkeys(name for stack in stacks for name in stack)
    rows = [{name: _three(name, stack.get(name)) for name in names} for stack in stacks]
    common = [name for name in COMMON if len(rows) > 1 and len({row.get(name, "") for row in rows}) == 1]
    if all(row["stacks"] in (1, row["cells"]) for row in rows):
        del names["stacks"]
    usual = _usual(rows, USUAL | {"value_rank": "ranks"})
    table("to train", rows, [name for name in names if name not in common and name not in usual])
    if common := [f"{name.replace('_', ' ')} {cell(rows[0][name])}" for name in common if name in names]:
        paper.print(f"each with {', '.join(common)}", markup=False, highlight=False, soft_wrap=True)
