"""The gallery: each figure and table of the papers, ours beside published, and what the run shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.figures.base import FigureOutcome, Reproduction
from rankfall.provenance import provenance
from rankfall.report.definitions import definitions_of
from rankfall.report.document import Answer, Document, Grid, Level, Picture, Section

LEVELS: dict[bool | None, Level] = {True: "good", False: "warn", None: "unknown"}
BELOW = "Nothing here was run at the scale of a paper that published numbers, so nothing can agree with them."


def gallery(
    runs: Sequence[tuple[Reproduction, FigureOutcome, dict[str, Any]]],
    command: str,
    others: Sequence[Mapping[str, Any]] = (),
) -> Document:
    """One section per figure: its picture, its claims with the evidence, its points and its tables.

    `others` are the records of figures whose files lie in the same folder.
    """
    holding = sum(outcome.holds is True for _, outcome, _ in runs)
    agreeing = sum(record["agrees"] is True for _, _, record in runs)
    compared = sum(record["agrees"] is not None for _, _, record in runs)
    return Document(
        title="Figures and tables, ours beside published",
        summary=f"{len(runs)} figures and tables; in {holding} all that can be decided holds. "
        + (f"{agreeing} of {compared} agree with the papers in every published point." if compared else BELOW),
        answers=[_answer(figure, outcome, record) for figure, outcome, record in runs],
        sections=[*(_section(*one) for one in runs), *([_beside(others)] if others else [])],
        command=command,
        provenance=provenance(),
    )


def block_name(identity: str, *parts: str) -> str:
    """The file name of something that belongs to a figure: `amsel/fig1` and `points` give `amsel-fig1-points`."""
    return "-".join([identity, *parts]).replace("/", "-").replace("_", "-").lower()


def _answer(figure: Reproduction, outcome: FigureOutcome, record: dict[str, Any]) -> Answer:
    failed = [f"fails: {claim.statement} ({claim.evidence})" for claim in outcome.claims if not claim.holds]
    decided = [point["agrees"] for point in outcome.points if point.get("agrees") is not None]
    reasons = [f"{sum(decided)} of {len(decided)} published points met"] if decided else []
    if outcome.claims:
        reasons.append(f"{sum(claim.holds for claim in outcome.claims)} of {len(outcome.claims)} claims hold")
    reasons.append(f"{record['seconds']:.1f} s at scale {record['scale']}")
    return Answer(f"{figure.id}: {figure.title}", record["standing"], LEVELS[outcome.holds], [*reasons, *failed])


def _beside(others: Sequence[Mapping[str, Any]]) -> Section:
    said = [
        f"{one['id']}, {one['title']}: {one['standing']} (scale {one['scale']}). Its files begin with"
        f" `{block_name(one['id'])}`."
        for one in others
    ]
    return Section("Also in this folder, from earlier commands", said)


def _section(figure: Reproduction, outcome: FigureOutcome, record: dict[str, Any]) -> Section:
    import pandas as pd

    meaning = definitions_of(figure)
    command = f"rankfall reproduce {figure.id} --scale {record['scale']}"
    blocks: list[Picture | Grid] = []
    if outcome.draw is not None:
        shown = f"Shows {', '.join(figure.statements)}. " if figure.statements else ""
        caption = f"{shown}Scale: {record['scale']}."
        blocks.append(Picture(block_name(figure.id), figure.title, caption, outcome.draw(), command))
    if outcome.claims:
        claims = pd.DataFrame(
            [{"claim": claim.statement, "holds": claim.holds, "evidence": claim.evidence} for claim in outcome.claims]
        )
        blocks.append(Grid(block_name(figure.id, "claims"), "Claims", claims, definitions=meaning))
    if outcome.points:
        points = pd.DataFrame([dict(point) for point in outcome.points])
        blocks.append(Grid(block_name(figure.id, "points"), "Points", points, definitions=meaning))
    for name, table in outcome.tables.items():
        title = name.replace("_", " ").capitalize()
        blocks.append(Grid(block_name(figure.id, name), title, table, definitions=meaning))
    return Section(f"{figure.id}: {figure.title}", list(outcome.notes), blocks)
