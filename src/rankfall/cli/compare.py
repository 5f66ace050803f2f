"""`rankfall compare`: two models, or two checkpoints of one, side by side."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from rankfall.cli.output import JsonFlag, emit, notes, paper, require_folder, table


def compare(
    first: Annotated[str, typer.Argument(help="A folder, a GGUF file, a hub id or a name, as for audit.")],
    second: Annotated[str, typer.Argument(help="The other one.")],
    text: Annotated[list[Path] | None, typer.Option("--text", help="A text file; default: a text of ours.")] = None,
    tokens: Annotated[int, typer.Option("--tokens", help="Tokens of each passage.")] = 128,
    passages: Annotated[int | None, typer.Option("--passages", help="Passages to take from each file.")] = None,
    out: Annotated[Path, typer.Option("--out", help="Folder for the report, its tables and pictures.")] = Path(
        "report"
    ),
    device: Annotated[str, typer.Option("--device", help="cpu or cuda.")] = "cpu",
    seed: Annotated[int, typer.Option("--seed", help="Of the bootstrap.")] = 0,
    json: JsonFlag = False,
) -> None:
    """Audit two models on the same text and write one report of both.

    Example: `rankfall compare minilm smollm2 --tokens 128 --out report`
    """
    from rankfall.models.audit import audit
    from rankfall.models.texts import read_texts
    from rankfall.report.audit import comparison_document, depth_table, heads_table, labels
    from rankfall.report.page import write

    require_folder(out)
    command = shlex.join(["rankfall", *sys.argv[1:]])
    results = []
    for model in (first, second):
        with notes.status(f"{model}: starting") as status:
            results.append(
                audit(
                    model,
                    read_texts(text) if text else None,
                    tokens=tokens,
                    passages=passages,
                    controls=False,
                    ablation=False,
                    device=device,
                    seed=seed,
                    progress=lambda what, share, s=status, m=model: s.update(f"{m}: {what}, {share:.0%} done"),
                    command=command,
                )
            )
    page = write(comparison_document(results[0], results[1], command), out)
    pairs = list(zip(labels(results[0], results[1]), results, strict=True))
    record: dict[str, Any] = {
        "models": [{"label": name, **one.record()["model"]} for name, one in pairs],
        "depth": depth_table(pairs).to_dict("records"),
        "heads": heads_table(pairs).to_dict("records"),
        "verdicts": {name: one.verdict.headline for name, one in pairs},
        "report": str(page),
    }

    def show() -> None:
        columns = ("model", "layer", "effective_rank", "relative_mu", "mean_abs_cosine")
        table("tokens of length one, layer by layer", record["depth"], columns)
        for headline in record["verdicts"].values():
            paper.print(headline, markup=False, highlight=False)
        paper.print(f"report: {page}", markup=False, highlight=False, soft_wrap=True)

    emit(record, as_json=json, show=show)
