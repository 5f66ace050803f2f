"""Stored results drawn: audits laid over each other by layer, runs by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rankfall.explorer.stored import StoredAudit
from rankfall.explorer.theme import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, line, lines, panel

CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


def draw_audits(audits: Sequence[StoredAudit], measure: str, view: str) -> dict[str, Any]:
    """One curve per audited model: all tokens, sinks among them, at block boundaries, where `hidden_states` are."""
    series = []
    for audit, colour in zip(audits, CYCLE * len(audits), strict=False):
        table = audit.depth
        rows = table[table["view"] == view]
        for column, wanted in (("part", "boundary"), ("sinks", "with")):
            if column in rows:
                rows = rows[rows[column] == wanted]
        if measure in rows:
            rows = rows.sort_values("layer")
            series.append(line(audit.name, rows["layer"].tolist(), rows[measure].tolist(), colour, dots=3))
    words = measure.replace("_", " ")
    return lines("audits", f"{words} by layer, tokens: {view}", {"label": "layer"}, [panel(words, series)])


def draw_runs(rows: Sequence[dict[str, Any]], error: str) -> dict[str, Any]:
    """Error against rank, a series for each number of layers, multiplier and kind of data; every run is a point."""
    found: dict[tuple[int, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if isinstance(row.get("rank"), int) and isinstance(row.get(error), int | float):
            kind = (int(row.get("layers") or 0), int(row.get("multiplier") or 0), str(row.get("data")))
            found[kind].append((row["rank"], row[error]))
    series = []
    for (kind, points), colour in zip(sorted(found.items()), CYCLE * max(1, len(found)), strict=False):
        name = f"layers {kind[0]}, multiplier {kind[1]}, {kind[2]} data"
        ranks, errors = zip(*sorted(points), strict=True)
        series.append(line(name, ranks, errors, colour, dots=3))
    words = error.replace("_", " ")
    return lines(
        "runs", f"{words} of stored runs", {"label": "rank r", "log": True}, [panel(words, series, log=True)]
    )
