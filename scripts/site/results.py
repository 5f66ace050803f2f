"""Tables of measured numbers, filled into pages from the committed files, so that a page cannot fall behind them.

A page says where with a line `<!-- table: NAME -->`; NAME is a key of `TABLES`.
"""

from __future__ import annotations

import csv
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks" / "results"
SOAK = ROOT / "soak" / "results"
ARCHITECTURES = ROOT / "src" / "rankfall" / "models" / "architectures" / "architectures.csv"
MARKER = re.compile(r"^<!-- table: (.+?) -->$", re.MULTILINE)
# Columns of a trained point that the table leaves to `rankfall reproduce`.
NOT_SHOWN = {"mean", "trained_fresh_best"}
# Nothing was published as a number; by layer, `ours` repeats one of the measures.
NOT_DECIDING = {"published", "agrees"}
KEPT = ("wu/fig2", "wu/fig2-pretrained", "wu/fig4")
TRAINED = (
    *("amsel/fig1", "amsel/fig2", "amsel/fig3", "amsel/fig4", "amsel/in-context"),
    *("rankfall/depth", "rankfall/text-rank"),
)


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Called by mkdocs with the text of each page."""
    return MARKER.sub(lambda found: TABLES[found[1]](), markdown)


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Records as a table; columns that are empty throughout are left out."""
    columns = [name for name in rows[0] if any(row.get(name) not in (None, "") for row in rows)]
    head = "| " + " | ".join(name.replace("_", " ") for name in columns) + " |\n" + "|---" * len(columns) + "|"
    body = ("| " + " | ".join(_cell(row.get(name)) for name in columns) + " |" for row in rows)
    return "\n".join([head, *body])


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "**no**"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value).replace("|", "/")


def trained_figure(identity: str) -> str:
    """Published points beside ours, from the summaries under `results/` and from nothing else."""
    from rankfall.catalogue import FIGURES
    from rankfall.figures.trained import STORE_VARIABLE

    before = os.environ.get(STORE_VARIABLE)
    os.environ[STORE_VARIABLE] = os.devnull  # whoever builds the site may have a store; it must not show here
    try:
        outcome = FIGURES[identity].run("paper")
    finally:
        os.environ.pop(STORE_VARIABLE) if before is None else os.environ.update({STORE_VARIABLE: before})
    shown = [{name: value for name, value in point.items() if name not in NOT_SHOWN} for point in outcome.points]
    # Some figures train on fresh data only: nothing of theirs is on the repeated sample.
    ours = [point for point in shown if point["ours"] is not None or point.get("trained_fresh") is not None]
    if not ours:
        return "No trained cells of this figure have been committed yet."
    decided = [point["agrees"] for point in ours if point["agrees"] is not None]
    parts = [
        f"{len(ours)} of {len(outcome.points)} points have been trained"
        + (f"; {sum(decided)} of {len(decided)} agree." if decided else "."),
        markdown_table(ours),
        *(f"- {'Holds' if one.holds else '**Fails**'}: {one.statement} ({one.evidence})." for one in outcome.claims),
    ]
    return "\n\n".join(parts)


def provenance_of_results() -> str:
    """Commit, hardware and date of every committed file of trained cells."""
    rows = []
    for table in sorted((ROOT / "results").rglob("*.csv")):
        page = table.with_suffix(".json")
        if not page.exists():
            continue  # no table of cells
        cells = list(csv.DictReader(table.open(newline="")))
        for number, one in enumerate(json.loads(page.read_text())["environments"]):
            rows.append(
                {
                    "file": f"`{table.relative_to(ROOT)}`",
                    "cells": sum(cell["environment"] == str(number) for cell in cells),
                    "hardware": one["hardware"],
                    "torch": one["packages"]["torch"],
                    "commit": one["commit"],
                    "date": one["date"],
                }
            )
    return markdown_table(rows)


def kept_figure(identity: str) -> str:
    """A figure that is computed, not trained, as its last committed run at paper scale found it."""
    pages = sorted((ROOT / "results" / "paper-figures").glob("*.json"))
    kept = [one for page in pages for one in json.loads(page.read_text())["figures"] if one["id"] == identity][-1]
    made = kept["provenance"]
    points = [point for point in kept["points"] if _is_shown(point, kept["points"])]
    left_out = NOT_DECIDING | ({"ours"} if points and "layer" in points[0] else set())
    shown = [{name: value for name, value in point.items() if name not in left_out} for point in points]
    return "\n\n".join(
        [
            f"`{made['command']}`; {made['hardware']}; commit {made['commit']}; {made['date']}.",
            *([markdown_table(shown)] if shown else []),
            "\n".join(
                f"- {'Holds' if one['holds'] else '**Fails**'}: {one['statement']} ({one['evidence']})."
                for one in kept["claims"]
            ),
        ]
    )


def _is_shown(point: Mapping[str, Any], points: Sequence[Mapping[str, Any]]) -> bool:
    """Of points by layer the first, the middle and the last after a block."""
    if "layer" not in point:
        return True
    last = max(one["layer"] for one in points if one["model"] == point["model"])
    return point["layer"] in (1, last // 2, last)


def benchmarks() -> str:
    """Every committed benchmark: its page, headings two levels down, or a table of its rows where it has no page."""
    parts = []
    for path in sorted(BENCHMARKS.glob("*.json")):
        page = path.with_suffix(".md")
        theme = path.stem.replace("-", " ", path.stem.count("-") - 2)
        parts.append(_demoted(page.read_text(), theme) if page.exists() else _rows_of(path, theme))
    return "\n\n".join(parts)


def _demoted(text: str, theme: str) -> str:
    if not text.startswith("# "):
        text = f"# {theme}\n\n{text}"
    lines = (f"##{line}" if line.startswith("#") else line for line in text.splitlines())
    # Some pages end with what produced them as a mapping.
    return "\n".join(f"`{line}`" if line.startswith("{") else line for line in lines)


def _rows_of(path: Path, theme: str) -> str:
    content = json.loads(path.read_text())
    made = content["provenance"]
    origin = f"{made['hardware']}; torch {made['packages']['torch']}; commit {made['commit']}; {made['date']}."
    return f"### {theme}\n\n{origin}\n\n{markdown_table(content['rows'])}"


def soak() -> str:
    """Every committed run of `make soak`: what was done, how often, with which seeds, and what failed."""
    parts = []
    for path in sorted(SOAK.glob("*.json")):
        content = json.loads(path.read_text())
        made, (first, last) = content["environment"], content["seeds"]
        done = [{"trial": name, **counts} for name, counts in content["trials"].items() if counts]
        columns = list(dict.fromkeys(name for row in done for name in row))
        total = {name: sum(row.get(name, 0) for row in done) for name in columns if name != "trial"}
        rows = [{name: row.get(name, "") for name in columns} for row in [*done, {"trial": "all", **total}]]
        parts += [
            f"Engine {content['engine']}, seeds {first} to {last}, {content['seconds'] / 60:.0f} minutes; "
            f"{made['hardware']}; torch {made['packages']['torch']}; commit {made['commit']}; {made['date']}; "
            f"failures: {'; '.join(content['failures']) or 'none'}.",
            markdown_table(rows),
        ]
    return "\n\n".join(parts)


def architectures() -> str:
    """Which architectures of the library are seen, as measured."""
    rows = list(csv.DictReader(ARCHITECTURES.read_text().splitlines()))
    counts = Counter(row["outcome"] for row in rows)
    columns = [name for name in rows[0] if name not in ("transformers", "date")]
    shown = [{name: row[name] for name in columns} for row in rows]
    return "\n".join(
        [
            f"Measured with transformers {rows[0]['transformers']} on {rows[0]['date']}.\n",
            *(f"- {outcome}: {count}" for outcome, count in counts.most_common()),
            "",
            markdown_table(shown),
        ]
    )


TABLES: dict[str, Callable[[], str]] = {
    "trained cells": provenance_of_results,
    "benchmarks": benchmarks,
    "soak": soak,
    "architectures": architectures,
    **{identity: lambda identity=identity: trained_figure(identity) for identity in TRAINED},
    **{identity: lambda identity=identity: kept_figure(identity) for identity in KEPT},
}
