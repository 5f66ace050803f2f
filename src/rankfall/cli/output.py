"""How every verb prints: one JSON object on standard output, or a table for people; notes on standard error."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rankfall.api.result import Result, plain
from rankfall.destinations import make_parents, require_writable_file, require_writable_folder
from rankfall.drawing.canvas import FORMATS
from rankfall.errors import printable
from rankfall.progress import Progress

SCHEMA = 2
LONG_HEADING = 9
QUIET = 30.0
"""Seconds between two lines of progress where no bar can be drawn."""

UNLIMITED = 10_000
"""Columns of a pipe."""
SENTENCE = 24
"""Characters from which a cell of several words may wrap."""
NARROW = 16
"""Characters that it needs at least."""
PADDING = 2

JsonFlag = Annotated[bool, typer.Option("--json", help="Print exactly one JSON object on standard output.")]
TextFiles = Annotated[
    list[Path] | None,
    typer.Option("--text", help="Text file; repeat for several, which are averaged (default: a text that ships)."),
]
TokenCount = Annotated[int, typer.Option("--tokens", help="Number of tokens in each passage.")]
PassageCount = Annotated[
    int | None, typer.Option("--passages", help="Passages from each file (default: 4 in all, at least 1 of each).")
]
Device = Annotated[str, typer.Option("--device", help="Device: cpu or cuda.")]
StackName = Annotated[
    str | None,
    typer.Option("--stack", help="Part of the name of the stack of layers, such as decoder (default: all)."),
]
Precision = Annotated[
    str, typer.Option("--dtype", help="Precision of the weights: float32, bfloat16, float16 or float64.")
]
AllowDownload = Annotated[
    bool, typer.Option("--allow-download", help="Allow a hub id to be downloaded; otherwise nothing is fetched.")
]
PlotPath = Annotated[Path | None, typer.Option("--plot", help="Draw the result into this file (.png, .svg or .pdf).")]
# The papers' word for it still works.
WIDTH = ("--width", "--dim")


class SafeConsole(Console):
    """Prints text without its control characters: names, keys and messages come from models and files."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As Rich does it, each line of a string made printable."""
        super().print(*(_by_line(one) if isinstance(one, str) else one for one in objects), **options)


def _by_line(text: str) -> str:
    return "\n".join(printable(line) for line in text.split("\n"))


notes = SafeConsole(stderr=True)
paper = SafeConsole()


def emit(result: Mapping[str, Any], *, as_json: bool, show: Callable[[], None]) -> None:
    """Print the result: as one JSON object, or by calling `show`."""
    if not as_json:
        show()
        return
    document = {"schema": SCHEMA, **plain(result)}
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")


def table(title: str, rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> None:
    """Print records as a table for people.

    A number is never broken: in a pipe a table is as wide as it is; on a terminal the last columns that do not fit
    are left out, and named below it. Only sentences wrap.
    """
    columns = list(columns) if columns is not None else list(rows[0]) if rows else []
    texts = {name: [printable(cell(row.get(name))) for row in rows] for name in columns}
    page = paper if paper.is_terminal else SafeConsole(width=UNLIMITED)
    kept = fitting(texts, page.width)
    # As a title of its own the line would be wrapped to the table's width, and a narrow table breaks words.
    page.print(Text(printable(title), style="table.title"), soft_wrap=True)
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in kept:
        wraps = page is paper and sentences(texts[name])
        drawn.add_column(Text(heading(name)), justify="left" if wraps else "right", no_wrap=not wraps)
    for values in zip(*(texts[name] for name in kept), strict=True):
        drawn.add_row(*(Text(value) for value in values))
    page.print(drawn)
    if left := [name.replace("_", " ") for name in columns if name not in kept]:
        line = f"Not shown for lack of width: {', '.join(left)}. A wider terminal, a pipe or --json has all."
        paper.print(line, markup=False, highlight=False, style="dim")


def heading(name: str) -> str:
    """A column's name in words; a long one is stacked, so that a column is as wide as its numbers and one word."""
    return printable(name).replace("_", "\n" if len(name) > LONG_HEADING else " ")


def sentences(texts: Sequence[str]) -> bool:
    """Whether a column holds words that may wrap between them."""
    return any(len(text) > SENTENCE and " " in text for text in texts)


def fitting(texts: Mapping[str, Sequence[str]], width: int) -> list[str]:
    """The columns, from the first on, that fit beside each other unbroken; at least one."""
    kept: list[str] = []
    used = 0
    for name, found in texts.items():
        most = NARROW if sentences(found) else UNLIMITED
        wide = max(map(len, heading(name).splitlines()), default=0)
        needed = PADDING + max([wide, *(min(len(text), most) for text in found)])
        if kept and used + needed > width:
            break
        kept.append(name)
        used += needed
    return kept


def cell(value: Any) -> str:
    """One value as a person would write it."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)


def wrote(path: Path) -> None:
    """Say that a file was written."""
    notes.print(f"wrote {path}", markup=False, highlight=False, soft_wrap=True)


@dataclass(frozen=True)
class Outputs:
    """The files that a command was asked for: checked when this is made, before any work, and written after the
    answer is printed, so that a failure to write loses no result.
    """

    plot: Path | None = None
    csv: Path | None = None
    out: Path | None = None

    def __post_init__(self) -> None:
        if self.plot is not None:
            require_writable_file(self.plot, "--plot", FORMATS)
        if self.csv is not None:
            require_writable_file(self.csv, "--csv")
        if self.out is not None:
            require_writable_folder(self.out, "--out")

    @property
    def page(self) -> str | None:
        """The page of the report that will be written."""
        from rankfall.report.page import PAGE

        return None if self.out is None else str(self.out / PAGE)

    def write(self, result: Result, made_by: str | None = None) -> None:
        """Write what was asked for, and say so: a picture, the main table, a report."""
        sys.stdout.flush()
        if self.plot is not None:
            result.plot(self.plot)
            wrote(self.plot)
        if self.csv is not None:
            result.to_frame().to_csv(make_parents(self.csv), index=False)
            wrote(self.csv)
        if self.out is not None:
            wrote(result.save(self.out, command=made_by or command()))


def command() -> str:
    """The command line that is running, for reports and provenance."""
    return shlex.join(["rankfall", *sys.argv[1:]])


@contextlib.contextmanager
def shown(title: str) -> Iterator[Progress]:
    """Progress on standard error: a bar with the time left on a terminal, a line now and then in a log."""
    if notes.is_terminal:
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as Bar

        columns = (
            BarColumn(20),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.description}", markup=False),
        )
        with Bar(*columns, console=notes, transient=True) as bar:
            task = bar.add_task(printable(title), total=1.0)
            yield lambda what, share: bar.update(task, completed=share, description=printable(f"{title}: {what}"))
        return
    begun = said = time.perf_counter()
    first: float | None = None

    def line(what: str, share: float) -> None:
        nonlocal said, first
        moment = time.perf_counter()
        first = share if first is None else first
        if moment - said >= QUIET and share > first:
            left = (moment - begun) * (1 - share) / (share - first)
            notes.print(f"{share:.0%} {what}; about {duration(left)} left", soft_wrap=True, markup=False)
            said = moment

    yield line


def duration(seconds: float) -> str:
    """A time in the unit that a person would choose."""
    if seconds != seconds:
        return "an unknown time"
    if seconds < 120:
        return f"{seconds:.0f} second{'s' * (round(seconds) != 1)}"
    if seconds < 7200:
        return f"{seconds / 60:.0f} minutes"
    return f"{seconds / 3600:.1f} hours"
