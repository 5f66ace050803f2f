"""Many audits as one report: a verdict over training, maps of layers by checkpoints; or two of them side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from rankfall.drawing.audit import draw_comparison
from rankfall.drawing.series import FIRST, draw_series
from rankfall.models.series.halves import by_stack
from rankfall.models.series.names import stem
from rankfall.models.series.verdict import COMPARED, SeriesVerdict
from rankfall.models.series.work import AuditedModel
from rankfall.models.verdict.judgement import middle
from rankfall.provenance import provenance
from rankfall.report.document import Answer, Document, Grid, Level, Picture, Section
from rankfall.report.verb_definitions import definitions_for

QUESTIONS = {
    "last layer": "What does the token rank at the last layer do?",
    "all layers": "And over all layers?",
    "layers": "Which layers change most?",
    "heads": "Do the heads change?",
    "when": "When does it change most?",
    "loss": "Does the loss go with it?",
    "verdicts": "Does the verdict on the checkpoints change?",
    "depth": "Do the layers correspond?",
    "not audited": "What is missing?",
}
LEVELS: dict[str, Level] = {"not audited": "bad", "depth": "warn"}
COLUMNS = {
    "stack": "which of the model's stacks of blocks, such as its encoder or its decoder",
    "step": "the number in which the names of the checkpoints differ",
    "loss": "mean loss of the model on the text that was read, in nats a token",
    "lowest_rank": "lowest effective rank of tokens of length one over all layers",
    "lowest_layer": "the layer at which it is lowest",
    "alignment": "whether tokens become aligned, by the checkpoint's own verdict",
    "distinctions": "whether distinctions between tokens are lost, by the checkpoint's own verdict; `kept` is said"
    " beside random weights only (controls), otherwise `not lost`",
    "domination": "whether a few tokens dominate, by the checkpoint's own verdict",
    "last_over_highest": "energy rank at the last layer over the highest of all layers",
    "layers": "blocks of the model",
    "parameters": "numbers that the model holds, shared ones once",
    "seconds": "time that the audit took when it was made",
    "audited": "whether it could be audited",
    "status": "the verdict in a word",
    "stored": "whether the audit was taken from the store",
    "id": "name of the audit in the store: a checksum of the model's files, the options and the versions",
    "other_layer": "layer of the second model at the same or the nearest relative depth",
}
SERIES_DEFINITIONS: dict[str, str] = {**definitions_for("audit"), **COLUMNS}
TITLES = {
    "checkpoints": "Checkpoint by checkpoint",
    "depth": "Layer by layer",
    "differences": "What changed, layer by layer",
    "heads": "The median head of each layer",
    "head_differences": "What changed, head by head",
}
CAPTIONS = {
    "checkpoints": "Measures are those of tokens of length one at the last layer.",
    "depth": "Measures of tokens of length one at every block boundary.",
    "differences": "The last one's measures minus the first one's, tokens of length one.",
    "head_differences": "The last one's ranks and norms minus the first one's.",
}
REST = "Every measure that is not above"


def series_title(names: Sequence[str]) -> str:
    """The report's title: the same when the series has grown since."""
    common = stem(names)
    return f"Series of {common}" if common is not None else f"Series from {names[0]} on"


def comparison_title(labels: Sequence[str]) -> str:
    """The same for two models."""
    return " beside ".join(labels)


def series_document(
    models: Sequence[AuditedModel], tables: Mapping[str, pd.DataFrame], verdict: SeriesVerdict, command: str
) -> Document:
    """The report of a series."""
    answers = [
        Answer(QUESTIONS[one.topic], one.text, LEVELS.get(one.topic, "unknown"))
        for one in verdict.reasons
        if one.topic in QUESTIONS
    ]
    sections = [Section("Checkpoints", (), _grids(tables, "checkpoints"))]
    if "depth" in tables:
        sections.append(
            Section("Layers by checkpoints", (), [*series_pictures(tables), *_grids(tables, "depth", "differences")])
        )
    sections.append(Section("Head rank", (), _grids(tables, "heads", "head_differences")))
    labels = [one.label for one in models]
    return Document(
        title=series_title(labels),
        summary=f"{len(models)} checkpoints: {verdict.headline}",
        answers=answers,
        sections=[section for section in sections if section.blocks],
        command=command,
        provenance=provenance(),
    )


def stacks_in(tables: Mapping[str, pd.DataFrame]) -> list[str | None]:
    """The stacks of blocks that the tables tell apart, the first one first; None where there is one."""
    depth = tables["depth"]
    return list(depth["stack"].drop_duplicates()) if "stack" in depth else [None]


def of_stack(tables: Mapping[str, pd.DataFrame], stack: str | None) -> dict[str, pd.DataFrame]:
    """What the tables have of one stack."""
    if stack is None:
        return dict(tables)
    return {name: table[table["stack"] == stack] for name, table in tables.items()}


def series_figure(tables: Mapping[str, pd.DataFrame], stack: str | None = None) -> Any:
    """The measures to read first, the median head of self-attention, and the loss; of the first stack by default."""
    stack = stacks_in(tables)[0] if stack is None else stack
    tables = of_stack(tables, stack)
    first = tables["checkpoints"]
    losses = {row["model"]: row["loss"] for row in first.to_dict("records")} if "loss" in first else {}
    known = {name: loss for name, loss in losses.items() if loss is not None and loss == loss}
    depth = tables["depth"]
    shown = [name for name in FIRST if name in depth]
    heads = tables.get("heads")
    if heads is not None and "kind" in heads:
        heads = heads[heads["kind"] == "self"]
    return draw_series(depth, shown, heads=heads, losses=known, title=_titled("Layers by checkpoints", stack))


def _titled(title: str, stack: str | None) -> str:
    return title if stack is None else f"{title}: {stack}"


def series_pictures(tables: Mapping[str, pd.DataFrame]) -> list[Picture]:
    """The picture, and a second one with every other measure; of every stack of blocks."""
    depth = tables["depth"]
    beside = (*FIRST, "model", "step", "stack", "layer", "depth", "most")
    others = [name for name in depth.columns if name not in beside]
    caption = (
        "Tokens scaled to length one; layer 0 is the embeddings. Every panel has its own scale of colours."
        " The loss is that on the text which was read, where the models have one."
    )
    made = []
    for number, stack in enumerate(stacks_in(tables)):
        ending = f"_{number + 1}" if number else ""
        own, rest = of_stack(tables, stack)["depth"], _titled(REST, stack)
        made += [
            Picture(f"maps{ending}", _titled("Layers by checkpoints", stack), caption, series_figure(tables, stack)),
            Picture(
                f"other_maps{ending}",
                rest,
                "The same for the other measures.",
                draw_series(own, others, title=rest),
            ),
        ]
    return made


def comparison_document(
    models: Sequence[AuditedModel], tables: Mapping[str, pd.DataFrame], verdict: SeriesVerdict, command: str
) -> Document:
    """One report of two audits. Depth is drawn as a share, so that models of different depth lie over each other."""
    labels = [one.label for one in models]
    told = [one for one in verdict.reasons if one.topic in COMPARED]
    records = {one.label: one.record for one in models if one.record is not None}
    return Document(
        title=comparison_title(labels),
        summary="; ".join(
            f"{name}: {one['kind']}, {one['layers']} layers, {one['parameters']:,} parameters"
            for name, one in ((name, record["model"]) for name, record in records.items())
        ),
        answers=[
            *(
                Answer(_asked("Which keeps more distinctions between tokens?", series.label), kept(series.models))
                for series in by_stack(models)
                if len(series.models) == len(models)
            ),
            *(Answer(QUESTIONS[one.topic], one.text, LEVELS.get(one.topic, "unknown")) for one in told),
            *(Answer(f"{name}: what is its verdict?", one["verdict"]["headline"]) for name, one in records.items()),
        ],
        sections=[
            Section(
                "Token rank by depth",
                (),
                [
                    Picture(
                        "comparison",
                        "Both models over relative depth",
                        "Tokens scaled to length one; 0 is the embeddings, 1 the last layer.",
                        draw_comparison(tables["depth"]),
                    ),
                    *_grids(tables, "differences", "depth"),
                ],
            ),
            Section("Head rank", (), _grids(tables, "head_differences", "heads")),
        ],
        command=command,
        provenance=provenance(),
    )


def _grids(tables: Mapping[str, pd.DataFrame], *names: str) -> list[Grid]:
    return [
        Grid(name, TITLES[name], tables[name].dropna(axis=1, how="all"), CAPTIONS.get(name, ""), SERIES_DEFINITIONS)
        for name in names
        if name in tables
    ]


def _asked(question: str, stack: str | None) -> str:
    return question if stack is None else f"{stack}: {question}"


def kept(models: Sequence[AuditedModel]) -> str:
    """Which of two models keeps more distinctions: centred effective ranks at the output over
    those of the embeddings, of as many tokens of every passage of both."""
    records: dict[str, Mapping[str, Any]] = {one.label: one.record for one in models if one.record is not None}
    ends = {
        name: [one for one in record["depth"][-1]["passages"] if one["rarefied"]] for name, record in records.items()
    }
    if not all(ends.values()):
        return "too little text to judge: no passage of one of them has as many as 16 tokens"
    tokens = max(set.intersection(*(set(one["rarefied"]) for some in ends.values() for one in some)), key=int)
    shares = {}
    for name, record in records.items():
        start = {one["text"]: one["rarefied"].get(tokens, 0.0) for one in record["depth"][0]["passages"]}
        shares[name] = middle([one["rarefied"][tokens] / start[one["text"]] for one in ends[name]]).median
    ahead, behind = sorted(shares, key=lambda name: -shares[name])
    by = f"by the centred effective rank of {tokens} tokens of each passage at the output"
    if f"{shares[ahead]:.0%}" == f"{shares[behind]:.0%}":
        return f"as many in both ({shares[ahead]:.0%} of their embeddings'), {by}"
    told = " over ".join(f"{name} ({shares[name]:.0%} of its embeddings')" for name in (ahead, behind))
    return f"{told}, {by}"
