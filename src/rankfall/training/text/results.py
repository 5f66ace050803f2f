"""Trained language models that ship with the project: committed rows, each with the name of its text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import rankfall
from rankfall.errors import RequestError
from rankfall.sources import read_json
from rankfall.store.results import committed_summaries
from rankfall.training.text.comparison import SETTING, at_best_rate

Row = Mapping[str, Any]

FEWEST = 4
"""Ranks that a curve needs to decide anything."""
CURVE = (*SETTING, "feed_forward")
"""What models of one curve share, the last where there is no budget that it is solved for."""
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


@final
@dataclass(frozen=True)
class SharedWidthCurve:
    """Finished models of one corpus and setting with H r = H u = d, keys for every head and equal parameters, by
    rank, the least first, seeds side by side. `variant` tells it from other settings of the same corpus and width,
    such as `positions learned`; `main` is the one of them with most models."""

    corpus: str
    width: int
    variant: str
    main: bool
    models: Mapping[int, Sequence[Row]]


def shared_width_curves(rows: Sequence[Row], fewest: int = FEWEST) -> list[SharedWidthCurve]:
    """By corpus and width, the main setting first: models of two settings are never in one curve; curves of fewer
    ranks than `fewest` are left out."""
    found: dict[tuple[str, int], dict[tuple[Any, ...], dict[int, list[Row]]]] = {}
    for row in rows:
        if row["status"] == "done" and shares_width(row):
            settings = found.setdefault((row["corpus"], row["width"]), {})
            # of such heads equal parameters and equal operations are the same feed-forward
            units = row["feed_forward"] if row["budget"] == "none" else None
            models = settings.setdefault((*(row.get(name) for name in SETTING), units), {})
            models.setdefault(row["rank"], []).append(row)
    curves = []
    for corpus, width in sorted(found):
        own = {
            key: {rank: at_best_rate(rows) for rank, rows in models.items()}
            for key, models in found[corpus, width].items()
            if len(models) >= fewest
        }
        ordered = sorted(own, key=lambda key: (-_count(own[key]), [str(part) for part in key]))
        curves += [
            SharedWidthCurve(corpus, width, _apart(key, ordered), key == ordered[0], dict(sorted(own[key].items())))
            for key in ordered
        ]
    return curves


def shares_width(row: Row) -> bool:
    """Whether a model's heads have H r = H u = d and keys of their own, and nothing was solved for that makes such
    models differ in size, as equal time does."""
    cut = row["heads"] * row["rank"] == row["width"] == row["heads"] * row["value_rank"]
    return cut and row["key_heads"] == row["heads"] and not str(row["budget"]).startswith("step_seconds=")


def _apart(setting: tuple[Any, ...], others: Sequence[tuple[Any, ...]]) -> str:
    """What tells a setting from the others, in words."""
    named = [(name, setting[place]) for place, name in enumerate(CURVE) if len({one[place] for one in others}) > 1]
    return ", ".join(f"{name} {value}" for name, value in named)


def _count(models: Mapping[int, Sequence[Row]]) -> int:
    return sum(map(len, models.values()))
