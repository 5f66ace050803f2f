"""Reading the published values that ship with the package."""

from __future__ import annotations

import csv
from importlib import resources


def published(name: str) -> list[dict[str, str]]:
    """The records of a file in `published/`, as text."""
    with (resources.files("rankfall.reproduce.published") / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
