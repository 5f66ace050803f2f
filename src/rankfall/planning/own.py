"""A person's own trained runs beside a plan: from a store, or from results exported from one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

from rankfall.catalogue import EVIDENCE
from rankfall.errors import RequestError
from rankfall.planning.evidence import Evidence, listed
from rankfall.planning.text_evidence import TEXT, LanguageModels, own_models
from rankfall.store.query import rows_of
from rankfall.store.results import read_results
from rankfall.store.store import Store
from rankfall.training.text.cell import TextCell


@final
@dataclass(frozen=True)
class OwnEvidence:
    """Rows of finished runs, and the language models among them that can be compared."""

    rows: Sequence[Mapping[str, Any]]
    place: str
    models: LanguageModels | None
    why_none: str = ""
    """Why language models that are there cannot be compared; empty where there are none at all."""


def own_evidence(store: str | Path | None, results: str | Path | None, task: str) -> OwnEvidence | None:
    """What lies in a store, in exported results, or in both; None where neither is given. An error where nothing of
    it can speak: no run of the task and no language models that compare ranks."""
    given = [str(place) for place in (store, results) if place is not None]
    if not given:
        return None
    rows = [] if store is None else rows_of(Store(Path(store), create=False))[0]
    if results is not None:
        held = {row["id"] for row in rows}
        rows += [row for row in read_results(Path(results)) if row["id"] not in held]
    place = " and ".join(given)
    models = [row for row in rows if row.get("task") == TextCell.kind]
    points = [row for row in rows if row.get("task") == task and row.get("status") == "done"]
    if models:
        try:
            return OwnEvidence(rows, place, own_models(models, place))
        except RequestError as error:
            if not points:
                raise
            return OwnEvidence(rows, place, None, f"{error.got}, which compare no ranks at one cost")
    if not points:
        raise RequestError(
            required=f"finished runs of the task {task}, or language models, in {place}",
            got=f"{len(rows)} runs, none of them",
            remedy="name their task with --task, or sweep a grid into this store first",
        )
    return OwnEvidence(rows, place, None)


def evidence_for(width: int, own: OwnEvidence | None) -> tuple[list[Evidence], str]:
    """The sources that speak of a width, and what is to be said of a person's own models: they go before those that
    ship, but not where only the latter have the width."""
    sources: list[Evidence] = list(EVIDENCE)
    if own is None or own.models is None:
        return sources, f"of {own.place}: {own.why_none}" if own and own.why_none else ""
    if TEXT.covers(width) and not own.models.covers(width):
        return sources, (
            f"the language models in {own.place} have d = {listed(own.models.widths)} and do not speak of {width}: "
            "those that ship with rankfall do in their place"
        )
    said = f"the language models are those in {own.place}, in place of those that ship with rankfall"
    return [own.models if source is TEXT else source for source in sources], said
