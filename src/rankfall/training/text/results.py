"""Trained language models that ship with the project: committed rows, each with the name of its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import rankfall
from rankfall.errors import RequestError
from rankfall.sources import read_json
from rankfall.store.results import committed_summaries
from rankfall.training.text.comparison import SETTING

Row = Mapping[str, Any]

FEWEST = 4
"""Ranks that a curve needs to decide anything."""
CORPORA = "corpora.json"
"""Beside the rows: what each corpus, known by its hash, is called and holds."""


def text_results() -> list[dict[str, Any]]:
    """Finished language models among the committed results; `domain` names the text, or is its hash."""
    names = corpus_names()
    return [
        {**row, "domain": names.get(row["corpus"], row["corpus"])}
        for row in committed_summaries().values()
        if row.get("task") == "text" and row.get("nats_per_byte") is not None
    ]


def corpus_names() -> dict[str, str]:
    """Name of each corpus by its hash, from every `corpora.json` among the committed results."""
    package = Path(rankfall.__file__).parent
    known: dict[str, str] = {}
    for folder in (package / "results", package.parents[1] / "results"):
        for page in sorted(folder.rglob(CORPORA)):
            found = read_json(page)
            if not isinstance(found, Mapping) or not all(isinstance(one, Mapping) for one in found.values()):
                raise RequestError(
                    required=f"{page}: an object of corpora by hash, each with a name",
                    got="something else",
                    remedy="restore it from version control",
                )
            known |= {str(digest): str(about.get("name", digest)) for digest, about in found.items()}
    return known


def shared_width_curves(rows: Sequence[Row], fewest: int = FEWEST) -> dict[tuple[str, int], dict[int, list[Row]]]:
    """By corpus and width: finished models with H r = H u = d at equal parameters, by rank; curves of a few ranks.

    Of several settings, such as budgets, that of most models: models of two settings are never in one curve.
    """
    settings: dict[tuple[str, int], dict[tuple[Any, ...], dict[int, list[Row]]]] = {}
    for row in rows:
        shares = row["heads"] * row["rank"] == row["width"] == row["heads"] * row["value_rank"]
        if shares and row["status"] == "done" and str(row["budget"]).startswith("parameters="):
            curves = settings.setdefault((row["corpus"], row["width"]), {})
            curve = curves.setdefault(tuple(row.get(name) for name in SETTING), {})
            curve.setdefault(row["rank"], []).append(row)
    found = {key: max(curves.values(), key=_models) for key, curves in settings.items()}
    return {key: dict(sorted(curve.items())) for key, curve in found.items() if len(curve) >= fewest}


def _models(curve: Mapping[int, Sequence[Row]]) -> int:
    return sum(map(len, curve.values()))
