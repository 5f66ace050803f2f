"""`rankfall audit`: what a real model does to its tokens, what holds their rank up, and how its heads use theirs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall.catalogue import ENGINES, NAMED_MODELS
from rankfall.cli import output
from rankfall.cli.output import JsonFlag, Outputs, command, emit, paper, shown, table
from rankfall.cli.series import audit_series, is_series, leave, places_of_failure
from rankfall.errors import require

COLOURS = {
    **dict.fromkeys(("not aligned", "kept", "not lost", "not dominated"), "green"),
    **dict.fromkeys(("depends", "reduced", "aligned", "dominated", "too little text"), "yellow"),
}

NAMES = "; ".join(f"{one.name} ({one.meaning})" for one in NAMED_MODELS)

UNIT_COLUMNS = ("effective_rank", "energy_rank", "relative_mu", "mean_abs_cosine")
COLUMNS = ("layer", "most", *UNIT_COLUMNS, "raw_energy_rank", "centred_unit_effective_rank", "massive")
INSIDE_COLUMNS = ("layer", "part", *UNIT_COLUMNS, "massive")
HEAD_COLUMNS = ("layer", "head", "kv_head", "head_dim", "qk_rank", "qk_effective_rank", "qk_energy_rank", "ov_rank")


def audit(
    context: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help=f"A folder of safetensors, a GGUF file, a hub id (org/name@revision), or a name: {NAMES}. Several,"
            " 'runs/checkpoint-*' or 'org/name@{step1,step1000}' are a series (default: the first name).",
            autocompletion=NAMED_MODELS.complete,
        ),
    ] = None,
    text: output.TextFiles = None,
    tokens: output.TokenCount = 128,
    passages: output.PassageCount = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Layers to measure besides both ends: 6,12 or 1-5 (default all).")
    ] = None,
    inside: Annotated[bool, typer.Option("--inside", help="Measure inside blocks too.")] = False,
    controls: Annotated[
        bool,
        typer.Option(help="Run controls: random weights, shuffled tokens, random tokens (a series: only if given)."),
    ] = True,
    ablate: Annotated[
        bool, typer.Option(help="Take the blocks apart: which part holds the rank up (a series: only if given).")
    ] = True,
    draws: Annotated[int, typer.Option("--draws", help="Draws of each control.")] = 3,
    heads: Annotated[bool, typer.Option(help="Probe the rank of every head.")] = True,
    attention: Annotated[
        bool, typer.Option(help="Measure attention: entropy, sinks, logits, heads that do nothing.")
    ] = True,
    head_needs: Annotated[
        bool,
        typer.Option(
            "--head-needs",
            help="Find how many directions each head needs to reproduce its attention, and how far heads' spaces"
            " overlap (about ten passes).",
        ),
    ] = False,
    head_cut: Annotated[
        bool,
        typer.Option(
            "--head-cut",
            help="Also cut heads to 1, 2, 4, ... directions, all at once and layer by layer, and measure the loss"
            " (many passes).",
        ),
    ] = False,
    head_divergence: Annotated[
        float,
        typer.Option("--head-divergence", help="How far a head's attention may be from its own, in nats a row."),
    ] = 0.01,
    head_spectra: Annotated[
        Path | None,
        typer.Option(
            "--head-spectra",
            help="File for the singular values of every head: .npz, .csv or .json (with --head-needs).",
        ),
    ] = None,
    offset: Annotated[int, typer.Option("--offset", help="Distance at which rotary heads are probed.")] = 0,
    weights_only: Annotated[
        bool, typer.Option("--weights-only", help="Head ranks from the safetensors file; the model is not run.")
    ] = False,
    stack: output.StackName = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-if",
            help="Exit with status 1 if this holds, such as 'effective_rank < 4 at last' or 'distinctions lost';"
            " with 3 if it could not be decided, as on too little text.",
        ),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the report, its tables and pictures.")] = None,
    device: Annotated[
        str,
        typer.Option(
            "--device", help="Device: cpu, cuda, or auto: all GPUs, then host memory, then disk (extra large)."
        ),
    ] = "cpu",
    dtype: output.Precision = "float32",
    allow_download: output.AllowDownload = False,
    load_seconds: Annotated[
        float, typer.Option("--load-seconds", help="Longest time that loading may take, in seconds.")
    ] = 600.0,
    revision: Annotated[
        str | None, typer.Option("--revision", help="Branch, tag or commit of a hub id, as in org/name@revision.")
    ] = None,
    adapter: Annotated[
        Path | None, typer.Option("--adapter", help="Folder of a LoRA adapter to merge into the weights first.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the controls and the bootstrap.")] = 0,
    store: Annotated[
        Path | None, typer.Option("--store", help="Of a series: folder that keeps finished audits (default audits).")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help=f"Of a series: where to audit, {ENGINES.choices} (default local).",
            autocompletion=ENGINES.complete,
        ),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", help="Of a series: address of a running Ray cluster.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Measure token rank and head rank of a real model, and say what it means.

    Example: `rankfall audit smollm2 --tokens 512 --out report --fail-if "effective_rank < 4"`

    Many checkpoints: `rankfall audit 'runs/checkpoint-*' --out report`

    Quick: `rankfall audit minilm --tokens 16 --passages 1 --no-controls --no-ablate --no-heads`
    """
    names = models or [NAMED_MODELS.names[0]]
    several = is_series(names)
    model = names[0]
    if weights_only:
        require(
            not several,
            required="one model with --weights-only",
            got=" ".join(names)[:200],
            remedy="name one model, or leave it out for a series",
        )
        needs: dict[str, Any] = {"--fail-if": fail_if, "--text": text, "--out": out, "--layers": layers}
        needs |= {"--head-needs": head_needs, "--head-cut": head_cut, "--head-spectra": head_spectra}
        _refuse_what_needs_a_run(needs | {"--revision": revision, "--adapter": adapter})
        _weights_only(model, json)
        return
    from rankfall.api.audit import audit as run
    from rankfall.api.audit import layer_numbers
    from rankfall.models.condition import Checked, parse_condition, require_decidable

    conditions = [parse_condition(one).text for one in fail_if or ()]
    with_controls = controls and (not several or _given(context, "controls"))
    require_decidable(conditions, controls=with_controls)
    chosen = None if layers is None else layer_numbers(layers, "--layers")
    if head_spectra is not None:
        from rankfall.models.heads.spectra import require_spectra_file

        require(
            (head_needs or head_cut) and heads and not several,
            required="one model with --head-needs or --head-cut, and its heads probed, for --head-spectra",
            got="neither" if not several else "several models",
            remedy="add --head-needs",
        )
        require_spectra_file(head_spectra)
    outputs = Outputs(out=out)
    if several:
        audit_series(
            names,
            text,
            {
                "tokens": tokens,
                "passages": passages,
                "layers": chosen,
                "inside": inside,
                "stack": stack,
                "heads": heads,
                "attention": attention,
                "head_needs": head_needs,
                "head_cut": head_cut,
                "head_divergence": head_divergence,
                "controls": with_controls,
                "draws": draws,
                "ablate": ablate and _given(context, "ablate"),
                "offset": offset,
                "dtype": dtype,
                "device": device,
                "allow_download": allow_download,
                "load_seconds": load_seconds,
                "revision": revision,
                "adapter": adapter,
                "seed": seed,
            },
            conditions,
            store=store,
            engine=engine,
            address=address,
            out=out,
            json=json,
        )
        return
    _refuse_without_a_series({"--store": store, "--engine": engine, "--address": address})
    with shown(model) as progress:
        result = run(
            model,
            text,
            tokens=tokens,
            passages=passages,
            layers=chosen,
            inside=inside,
            stack=stack,
            heads=heads,
            attention=attention,
            head_needs=head_needs,
            head_cut=head_cut,
            head_divergence=head_divergence,
            controls=controls,
            draws=draws,
            ablate=ablate,
            offset=offset,
            dtype=dtype,
            device=device,
            allow_download=allow_download,
            load_seconds=load_seconds,
            revision=revision,
            adapter=adapter,
            seed=seed,
            progress=progress,
            command=command(),
        )
    found = result.record()
    checked = Checked.of(conditions, found)
    record = found | {
        "failed": list(checked.failed),
        "unchecked": "; ".join(checked.unchecked),
        "unchecked_reasons": dict(checked.unchecked),
        "open": [{"condition": condition, "reason": why} for condition, why in checked.open.items()],
        "report": outputs.page,
    }
    emit(record, as_json=json, show=lambda: _show(record))
    if head_spectra is not None and result.head_spectra:
        result.save_spectra(head_spectra)
    outputs.write(result)
    leave(failed=bool(checked.failed), undecided=bool(checked.unchecked))


def _refuse_what_needs_a_run(options: dict[str, Any]) -> None:
    """A check that is not made must not look as if it had passed."""
    given = [name for name, value in options.items() if value]
    require(
        not given,
        required="--weights-only without options that only a run has",
        got=", ".join(given),
        remedy="leave out one or the other",
    )


def _given(context: typer.Context, name: str) -> bool:
    """Whether the command line has the option, either way."""
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def _refuse_without_a_series(options: dict[str, Any]) -> None:
    given = [name for name, value in options.items() if value]
    require(
        not given,
        required=f"several models, or a pattern such as 'runs/checkpoint-*', with {', '.join(given)}",
        got="one model",
        remedy="one audit is not kept; name more models or leave it out",
    )


def _weights_only(model: str, json: bool) -> None:
    from rankfall.api.audit import heads_from_weights

    result = heads_from_weights(model)

    def show() -> None:
        table("heads, from the weights alone", result.record()["heads"], HEAD_COLUMNS)
        paper.print(result.headline, markup=False, highlight=False)

    emit(result.record(), as_json=json, show=show)


def _show(record: dict[str, Any]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    from rankfall.api.audit import loss_line
    from rankfall.models.depth.pooled import Pooled

    name = record["model"]["name"]
    where = f" in {record['stack']}" if record["other_stacks"] else ""
    title = f"{name}: tokens of length one, layer by layer{where}; {_read(record['text'])}"
    table(title, _brief(record["depth"]), COLUMNS)
    for other in record["other_stacks"]:
        table(f"{name}: the same in {other['name']}", _brief(other["depth"]), COLUMNS)
    if any(row["part"] != "before_final_norm" for row in record["inside"]):
        inner = [{**row, "part": row["part"].replace("_", " ")} for row in record["inside"]]
        table("inside the blocks", _brief(inner), INSIDE_COLUMNS)
    verdict = record["verdict"]
    paper.print(verdict["headline"], style="bold", markup=False, highlight=False)
    if record["other_stacks"]:
        _show_stacks(record)
    else:
        _show_findings(verdict)
        _show_reasons(verdict["reasons"])
    for one in record["pooled"]:
        paper.print(Padding(Text(Pooled(**one).told()), (0, 0, 0, 2)))
    text = record["text"]
    paper.print(f"  {loss_line(text['loss'], text['loss_reason'])}", markup=False, highlight=False)
    for note in record["model"]["notes"]:
        paper.print(f"  note: {note}", style="yellow", markup=False, highlight=False)
    for part, why in record["missing"].items():
        paper.print(f"  missing, {part}: {why}", style="yellow", markup=False, highlight=False)
    for one in record["failed"]:
        places = places_of_failure(one["layers"], record["stack"] if record["other_stacks"] else None)
        paper.print(f"  FAILED {one['condition']}: {places}", style="bold red", markup=False, highlight=False)
    for condition, why in record["unchecked_reasons"].items():
        paper.print(f"  NOT CHECKED {condition}: {why}", style="bold yellow", markup=False, highlight=False)
    for one in record["open"]:
        paper.print(f"  OPEN {one['condition']}: {one['reason']}", style="yellow", markup=False, highlight=False)


def _show_stacks(record: dict[str, Any]) -> None:
    """The verdict of each stack of blocks under its name, then what is about the whole model."""
    from rankfall.models.stacks import OF_A_STACK

    first = {"label": record["stack_label"], "name": record["stack"], "verdict": record["verdict"]}
    for one in (first, *record["other_stacks"]):
        paper.print(f"{one['label']} ({one['name']})", style="bold", markup=False, highlight=False)
        _show_findings(one["verdict"])
        _show_reasons([reason for reason in one["verdict"]["reasons"] if reason["topic"] in OF_A_STACK])
    of_all = [reason for reason in record["verdict"]["reasons"] if reason["topic"] not in OF_A_STACK]
    if of_all:
        paper.print("the whole model", style="bold", markup=False, highlight=False)
    _show_reasons(of_all)


def _show_findings(verdict: dict[str, Any]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for finding in verdict["findings"]:
        paper.print(f"  {finding['asks']} ", end="", markup=False, highlight=False)
        colour = COLOURS.get(finding["status"], "red")
        paper.print(finding["status"], style=f"bold {colour}", markup=False, highlight=False)
        for sentence in finding["sentences"] if finding["places"] else ():
            paper.print(Padding(Text(sentence), (0, 0, 0, 4)))


def _show_reasons(reasons: list[dict[str, Any]]) -> None:
    from rich.padding import Padding
    from rich.text import Text

    for reason in reasons:
        paper.print(Padding(Text(f"{reason['topic']}: {reason['text']}"), (0, 0, 0, 2)))


def _brief(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [
        {
            "layer": row["layer"],
            "part": row.get("part"),
            "effective_rank": f"{row['unit']['effective_rank']:.4g}",
            "energy_rank": f"{row['unit']['energy_rank']:.4g}",
            "relative_mu": f"{row['unit']['relative_mu']:.4g}",
            "mean_abs_cosine": f"{row['unit']['mean_abs_cosine']:.4g}",
            "most": f"{row['unit']['most']:.4g}",
            "centred_unit_effective_rank": f"{row['centred_unit']['effective_rank']:.4g}",
            "raw_energy_rank": f"{row['raw']['energy_rank']:.4g}",
            "massive": len(row["sinks"]),
        }
        for row in rows
    ]


def _read(text: dict[str, Any]) -> str:
    """What was read: a text shorter than asked for must not go unseen, because it cannot have a higher rank."""
    lengths = text["tokens"]
    if not lengths:
        return f"{text['texts']} inputs"
    spread = str(lengths[0]) if min(lengths) == max(lengths) else f"{min(lengths)} to {max(lengths)}"
    return (
        f"one passage of {spread} token{'' if spread == '1' else 's'}"
        if len(lengths) == 1
        else f"means over {len(lengths)} passages of {spread} tokens"
    )
