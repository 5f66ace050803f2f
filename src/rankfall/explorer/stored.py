"""What the third tab finds: reports that `rankfall audit --out` wrote, and the runs of a store."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

from rankfall.drawing.plots import CYCLE, line, lines, panel
from rankfall.store.files import read_table
from rankfall.store.query import rows_of
from rankfall.store.store import Store

if TYPE_CHECKING:
    import pandas as pd


# Set by `rankfall explore`; the page has its own process.
STORE, REPORTS = "RANKFALL_EXPLORE_STORE", "RANKFALL_EXPLORE_REPORTS"
PAGE, DEPTH = "report.html", "depth.parquet"
NEEDED = {"layer", "view", "effective_rank", "energy_rank"}
# A folder given by mistake, such as a home, is not searched to its bottom.
DEEPEST, MOST = 3, 50
CONFIGURATION = ("task", "dim", "points", "layers", "heads", "rank", "multiplier", "norm", "mask", "data", "steps")
RESULTS = ("mse_best", "mse_final", "mse_fresh", "seconds", "status", "seed", "id")


@final
@dataclass(frozen=True)
class AuditTable:
    """One audit's folder and its table of measures by layer and view."""

    name: str
    folder: Path
    depth: pd.DataFrame


@final
@dataclass(frozen=True)
class StoredRuns:
    """The finished runs of a store; `problem` says why there are none, or which are damaged."""

    folder: Path
    rows: list[dict[str, Any]]
    problem: str | None = None


def places() -> tuple[Path, Path]:
    """The store of runs and the folder under which reports lie."""
    return Path(os.environ.get(STORE, "runs")), Path(os.environ.get(REPORTS, "."))


def stored_audits(root: Path) -> tuple[list[AuditTable], list[str]]:
    """Every audit report under the folder, and what could not be read."""
    found: list[AuditTable] = []
    problems: list[str] = []
    for folder in _report_folders(root):
        try:
            depth = read_table(folder / DEPTH).to_pandas(use_threads=False)
        except (OSError, ValueError) as error:
            problems.append(f"{folder}: {str(error).splitlines()[0]}")
            continue
        # Other reports have a table of that name too, such as one that compares models.
        if set(depth.columns) >= NEEDED:
            inside = folder.relative_to(root)
            found.append(AuditTable(str(inside) if inside.parts else folder.resolve().name, folder, depth))
    return found, problems


def _report_folders(root: Path) -> Iterator[Path]:
    """Folders that hold a report's page and the depth table, breadth first, in the order of their names."""
    level, seen = [root], 0
    for _ in range(DEEPEST + 1):
        below: list[Path] = []
        for folder in level:
            try:
                children = sorted(folder.iterdir())
            except OSError:
                continue
            if (folder / PAGE).is_file() and (folder / DEPTH).is_file():
                seen += 1
                yield folder
                if seen == MOST:
                    return
            below += [child for child in children if child.is_dir() and not child.name.startswith(".")]
        level = below


def stored_runs(folder: Path) -> StoredRuns:
    """The rows of a store; a folder that is none is a problem in words, not an error."""
    if not folder.is_dir():
        return StoredRuns(folder, [], f"there is no store at {folder}")
    try:
        rows, damaged = rows_of(Store(folder, create=False))
    except (ValueError, OSError) as error:
        return StoredRuns(folder, [], str(error))
    return StoredRuns(folder, rows, f"{len(damaged)} damaged runs are left out" if damaged else None)


def runs_table(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns that people compare runs by, those that vary first."""
    varying = [name for name in CONFIGURATION if len({str(row.get(name)) for row in rows}) > 1]
    fixed = [name for name in CONFIGURATION if name not in varying]
    return [{name: _short(row.get(name)) for name in (*varying, *RESULTS, *fixed)} for row in rows]


def _short(value: Any) -> Any:
    """Four digits of a measured number are what a table can use."""
    return float(f"{value:.4g}") if isinstance(value, float) else value


def settled(rows: list[dict[str, Any]]) -> str:
    """What all runs have in common, in words."""
    common = {name: {str(row.get(name)) for row in rows} for name in CONFIGURATION}
    return ", ".join(f"{name} {next(iter(values))}" for name, values in common.items() if len(values) == 1)


def draw_audits(audits: Sequence[AuditTable], measure: str, view: str) -> dict[str, Any]:
    """One curve per audited model: all tokens, massive ones among them, at block boundaries (`hidden_states`)."""
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
