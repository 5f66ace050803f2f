"""Runs as a table for people: what differs between them, and what came out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.cli.output import paper, table

RESULTS = ("mse_best", "mse_final", "mse_fresh", "seconds")


def run_table(title: str, rows: Sequence[Mapping[str, Any]], *, ordered: bool = False) -> None:
    """Print id, status, the settings that are not the same everywhere, and the results to four digits."""
    from rankfall.training.cell import Cell

    if not rows:
        paper.print(f"{title}: nothing yet")
        return
    settings = [field.name for field in dataclasses.fields(Cell)]
    varying = [name for name in settings if len({str(row.get(name)) for row in rows}) > 1]
    if ordered:
        rows = sorted(rows, key=lambda row: [_sortable(row.get(name)) for name in varying])
    shown = ("id", "status", *(varying or ("rank",)), *RESULTS)
    table(title, [{name: _short(name, row.get(name)) for name in shown} for row in rows], shown)


def _short(name: str, value: Any) -> Any:
    if name == "id":
        return str(value)[:8]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _sortable(value: Any) -> tuple[bool, float, str]:
    number = isinstance(value, (int, float))
    return (number, float(value) if number else 0.0, str(value))
