"""One self-contained HTML file: styles, scripts, data and pictures inside, nothing fetched."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from rankfall.drawing.canvas import FORMATS, save, settle
from rankfall.drawing.from_matplotlib import plot_of
from rankfall.drawing.plots import PANEL_SCRIPTS, element, scripts
from rankfall.errors import printable_lines, require
from rankfall.report.document import Document, Grid
from rankfall.report.glossary import used

# What is only said, and not judged, has no mark.
MARKS = {"good": "✓", "warn": "!", "bad": "✗", "unknown": ""}

# More rows than anybody scrolls through; the files beside the report have all of them.
ROWS_SHOWN = 200

# A longer text is a sentence, which wraps.
SHORT_WORD = 24

BACKQUOTED = re.compile(r"`([^`\n]+)`")


def render(document: Document) -> str:
    """The report as HTML. Every word from outside is escaped, those inside plots too, and controls no terminal."""
    from jinja2 import Environment, StrictUndefined
    from markupsafe import Markup

    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["coded"] = coded
    template = environment.from_string(_asset("page.html.j2"))
    page = template.render(
        document=document,
        style=Markup(_asset("page.css")),
        script=Markup(scripts(PANEL_SCRIPTS) + _asset("page.js")),
        plots={one.name: Markup(element(plot_of(one.figure, one.name, one.title))) for one in document.pictures()},
        grids={grid.name: cells(grid) for grid in document.grids()},
        marks=MARKS,
        endings=FORMATS,
        glossary=used(document.words()),
        provenance=list(flat(document.provenance)),
    )
    return printable_lines(page)


def coded(text: str) -> Any:
    """Words in backquotes as code; everything is escaped first."""
    from markupsafe import Markup, escape

    return Markup(BACKQUOTED.sub(r"<code>\1</code>", str(escape(text))))


def cells(grid: Grid) -> dict[str, Any]:
    """A table as text for people and values for sorting."""
    table = grid.table.head(ROWS_SHOWN)
    columns = [
        {"label": str(column).replace("_", " "), "definition": grid.definitions.get(str(column), "")}
        for column in table.columns
    ]
    rows = [[_cell(value) for value in row] for row in table.itertuples(index=False)]
    return {"columns": columns, "rows": rows, "hidden": len(grid.table) - len(table)}


def flat(record: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested facts as lines of a list."""
    lines: list[tuple[str, str]] = []
    for key, value in record.items():
        if isinstance(value, Mapping):
            lines += flat(value, f"{prefix}{key} ")
        else:
            lines.append((f"{prefix}{key}", str(value)))
    return lines


def _cell(value: Any) -> dict[str, Any]:
    if value is None or value != value:  # NaN is the only value that differs from itself
        return {"text": "–", "value": "", "words": False}
    if isinstance(value, bool):
        return {"text": "yes" if value else "no", "value": str(int(value)), "words": False}
    if isinstance(value, float):
        return {"text": f"{value:.5g}", "value": repr(float(value)), "words": False}
    text = str(value)
    return {"text": text, "value": text, "words": len(text) > SHORT_WORD}


def _asset(name: str) -> str:
    return resources.files("rankfall.report").joinpath("assets", name).read_text(encoding="utf-8")


PAGE = "report.html"
TITLE = re.compile(r"<title>(.*?)</title>", re.DOTALL)
SAFE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


def require_own(folder: Path, title: str) -> None:
    """Refuse a folder that holds the report of something else; an older one of the same title is written over."""
    try:
        there = (folder / PAGE).read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    found = TITLE.search(there)
    held = html.unescape(found[1]) if found else "a page without a title"
    require(
        held == title,
        required=f"a folder for the report without another report in it, {folder}",
        got=f"a folder that holds `{held[:80]}`",
        remedy="choose another folder, or take that report away",
    )


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
        settle(picture.figure)
        for ending in FORMATS:
            save(picture.figure, folder / f"{picture.name}{ending}")
    for grid in document.grids():
        grid.table.to_csv(folder / f"{grid.name}.csv", index=False)
        grid.table.to_parquet(folder / f"{grid.name}.parquet", index=False)
    path = folder / PAGE
    path.write_text(page, encoding="utf-8")
    return path
