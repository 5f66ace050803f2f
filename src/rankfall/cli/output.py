"""How every verb prints: one JSON object on standard output, or a table for people; notes on standard error."""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from rankfall.errors import require

SCHEMA = 1

JsonFlag = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Draw the result into this file (.png, .svg or .pdf).")]

notes = Console(stderr=True)
paper = Console()


def emit(result: Mapping[str, Any], *, as_json: bool, show: Callable[[], None]) -> None:
    """Print the result: as one JSON object, or by calling `show`."""
    if not as_json:
        show()
        return
    document = {"schema": SCHEMA, **plain(result)}
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def plain(value: Any) -> Any:
    """Anything we compute as JSON can hold it: tensors become lists; NaN and the infinities become null."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    return str(value)


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Print records as a table for people."""
    columns = list(columns) if columns is not None else list(rows[0]) if rows else []
    drawn = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in columns:
        drawn.add_column(column.replace("_", " "), justify="right", overflow="fold")
    for row in rows:
        drawn.add_row(*(cell(row.get(column)) for column in columns))
    paper.print(drawn)


def cell(value: Any) -> str:
    """One value as a person would write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def require_folder(path: Path) -> None:
    """Said before the work is done, not after it: results cannot be written into a file."""
    taken = next((one for one in (path, *path.parents) if one.exists() and not one.is_dir()), None)
    require(
        taken is None,
        required="--out to name a folder, new or old",
        got=f"{taken}, which is a file",
        remedy="choose another name",
    )


@contextlib.contextmanager
def progress(description: str, total: int) -> Iterator[Callable[[int], None]]:
    """A progress bar on standard error that goes away when done; yields a function of steps taken."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=notes, transient=True, disable=not notes.is_terminal) as bar:
        task = bar.add_task(description, total=total)
        yield lambda steps: bar.advance(task, steps)


@contextlib.contextmanager
def shown(description: str, total: int) -> Iterator[Callable[[str, float], None]]:
    """The same bar for work that tells the share done."""
    done = 0
    with progress(description, total) as advance:

        def tell(what: str, share: float) -> None:
            nonlocal done
            reached = round(share * total)
            advance(reached - done)
            done = reached

        yield tell
