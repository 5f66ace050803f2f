"""Stored results drawn: audits laid over each other by relative depth, runs by rank."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from rankfall.explorer.stored import StoredAudit
from rankfall.explorer.theme import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, axis, figure, layout, line

HEIGHT = 400
CYCLE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY)


def draw_audits(audits: Sequence[StoredAudit], measure: str, view: str) -> Any:
    """One curve per audited model: all tokens, sinks among them, at block boundaries, where `hidden_states` are."""
    data = []
    for audit, colour in zip(audits, CYCLE * len(audits), strict=False):
        table = audit.depth
        rows = table[table["view"] == view]
        for column, wanted in (("part", "boundary"), ("sinks", "with")):
            if column in rows:
                rows = rows[rows[column] == wanted]
        if measure in rows:
            rows = rows.sort_values("layer")
            data.append(
                line(_text(audit.name), rows["layer"].tolist(), rows[measure].tolist(), colour, mode="lines+markers")
            )
    shape = layout(f"{measure.replace('_', ' ')} by layer, tokens: {view}", HEIGHT, showlegend=True)
    shape |= {"xaxis": axis("layer"), "yaxis": axis(measure.replace("_", " "))}
    return figure(data, shape)


def draw_runs(rows: Sequence[dict[str, Any]], error: str) -> Any:
    """Error against rank, a series for each number of layers, multiplier and kind of data; every run is a point."""
    series: dict[tuple[int, int, str], list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if isinstance(row.get("rank"), int) and isinstance(row.get(error), int | float):
            kind = (int(row.get("layers") or 0), int(row.get("multiplier") or 0), str(row.get("data")))
            series[kind].append((row["rank"], row[error]))
    data = []
    for (kind, points), colour in zip(sorted(series.items()), CYCLE * max(1, len(series)), strict=False):
        name = f"layers {kind[0]}, multiplier {kind[1]}, {kind[2]} data"
        ranks, errors = zip(*sorted(points), strict=True)
        data.append(line(_text(name), ranks, errors, colour, mode="lines+markers"))
    shape = layout(f"{error.replace('_', ' ')} of stored runs", HEIGHT, showlegend=True)
    shape |= {"xaxis": axis("rank r", type="log", dtick=0.30103), "yaxis": axis(error.replace("_", " "), type="log")}
    return figure(data, shape)


def _text(name: str) -> str:
    """Plotly reads `<` as markup; a folder may be called anything."""
    return name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
