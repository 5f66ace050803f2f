"""`rankfall compare`: two models, or two checkpoints of one, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rankfall.catalogue import NAMED_MODELS
from rankfall.cli import output
from rankfall.cli.output import JsonFlag, Outputs, emit, notes, paper, shown, table

COLUMNS = ("model", "stack", "layer", "effective_rank", "energy_rank", "relative_mu", "mean_abs_cosine")
DIFFERENCES = ("stack", "layer", "other_layer", *COLUMNS[3:])


def compare(
    first: Annotated[
        str,
        typer.Argument(
            help="A folder, a GGUF file, a hub id or a name, as for audit.", autocompletion=NAMED_MODELS.complete
        ),
    ],
    second: Annotated[
        str, typer.Argument(help="The model to compare it with.", autocompletion=NAMED_MODELS.complete)
    ],
    text: output.TextFiles = None,
    tokens: output.TokenCount = 128,
    passages: output.PassageCount = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder for the report, its tables and pictures.")] = None,
    device: output.Device = "cpu",
    stack: output.StackName = None,
    dtype: output.Precision = "float32",
    allow_download: output.AllowDownload = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the bootstrap.")] = 0,
    store: Annotated[Path, typer.Option("--store", help="Folder that keeps finished audits.")] = Path("audits"),
    json: JsonFlag = False,
) -> None:
    """Audit two models on the same text and lay one over the other, layer by layer and head by head.

    Example: `rankfall compare minilm smollm2 --tokens 128 --out report`

    Quick: `rankfall compare minilm minilm --tokens 8 --passages 1 --out report`
    """
    from rankfall.api.compare import compare as run

    outputs = Outputs(out=out)
    with shown("comparing") as progress:
        result = run(
            first,
            second,
            text,
            tokens=tokens,
            passages=passages,
            device=device,
            stack=stack,
            dtype=dtype,
            allow_download=allow_download,
            seed=seed,
            store=store,
            out=out,
            progress=progress,
            note=lambda told: notes.print(told, markup=False, highlight=False, soft_wrap=True),
        )
    record = result.record() | {"report": outputs.page}

    def show() -> None:
        several = any("stack" in row for row in record["depth"])
        columns, changes = (
            [name for name in names if several or name != "stack"] for names in (COLUMNS, DIFFERENCES)
        )
        table("tokens of length one, layer by layer", record["depth"], columns)
        first, second = result.labels
        table(f"{second} minus {first}, layer by layer", record["differences"], changes)
        for line in (*result.verdicts.values(), *result.kept, *result.changes):
            paper.print(line, markup=False, highlight=False)

    emit(record, as_json=json, show=show)
    outputs.write(result)
