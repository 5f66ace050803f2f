"""Records as CSV that a person can read in a diff and a program reads back exactly."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from rankfall.runs.tables import Record


def to_csv(records: Sequence[Record]) -> str:
    """Every value as JSON writes it, text without quotes where it cannot be mistaken, None as nothing."""
    names = list(dict.fromkeys(name for record in records for name in record))
    page = io.StringIO()
    writer = csv.writer(page, lineterminator="\n")
    writer.writerow(names)
    writer.writerows([_write(record.get(name)) for name in names] for record in records)
    return page.getvalue()


def from_csv(text: str) -> list[dict[str, Any]]:
    """The records back, with their types."""
    rows = csv.DictReader(io.StringIO(text))
    return [{name: _read(value or "") for name, value in row.items()} for row in rows]


def _write(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value if _read(value) == value else json.dumps(value)
    return json.dumps(value)


def _read(text: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text)
    except ValueError:
        return text
