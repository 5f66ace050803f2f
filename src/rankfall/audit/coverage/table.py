"""The table of architectures: what the installed library has, beside what was measured with which version."""

from __future__ import annotations

import csv
from importlib import metadata, resources
from typing import Any

from rankfall.audit.coverage.library import installed_architectures

TABLE = "architectures.csv"


def committed_table() -> dict[str, dict[str, str]]:
    """The measured table that ships with the package, by model type."""
    text = resources.files("rankfall.audit.coverage").joinpath(TABLE).read_text()
    return {row["model_type"]: row for row in csv.DictReader(text.splitlines())}


def coverage_table() -> list[dict[str, Any]]:
    """One record per architecture of the installed library.

    `reach` is read from the installed source; `outcome` was measured with the version in `measured_with`, which
    may be another: `current` says whether it is this one.
    """
    version = metadata.version("transformers")
    measured = committed_table()
    records = []
    for architecture in installed_architectures():
        row = measured.get(architecture.model_type, {})
        records.append(
            {
                "model_type": architecture.model_type,
                "reach": architecture.reach,
                "outcome": row.get("outcome", "not measured"),
                "expected": int(row.get("expected") or 0),
                "calls": int(row.get("calls") or 0),
                "note": row.get("note", ""),
                "measured_with": row.get("transformers"),
                "current": row.get("transformers") == version,
            }
        )
    return records
