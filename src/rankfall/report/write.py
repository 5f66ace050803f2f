"""Write a report: the page, and every table and picture beside it."""

from __future__ import annotations

import re
from pathlib import Path

from rankfall.drawing.canvas import FORMATS, save
from rankfall.errors import require
from rankfall.report.document import Document
from rankfall.report.page import render

PAGE = "report.html"
SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def write(document: Document, folder: Path) -> Path:
    """Write into `folder`, tables as CSV and Parquet, pictures as PNG, SVG and PDF; returns the path of the page."""
    names = [picture.name for picture in document.pictures()] + [grid.name for grid in document.grids()]
    bad = [name for name in names if not SAFE_NAME.fullmatch(name)]
    twice = sorted({name for name in names if names.count(name) > 1})
    require(
        not bad and not twice,
        required="tables and pictures of distinct names in small letters, digits, - and _",
        got=", ".join(bad or twice),
        remedy="name each block once; what came from a model is no name",
    )
    folder.mkdir(parents=True, exist_ok=True)
    page = render(document)
    for picture in document.pictures():
        for ending in FORMATS:
            save(picture.figure, folder / f"{picture.name}{ending}")
    for grid in document.grids():
        grid.table.to_csv(folder / f"{grid.name}.csv", index=False)
        grid.table.to_parquet(folder / f"{grid.name}.parquet", index=False)
    path = folder / PAGE
    path.write_text(page, encoding="utf-8")
    return path
