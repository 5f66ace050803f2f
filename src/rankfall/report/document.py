"""What a report says, before it has a form: answers first, then the evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

Level = Literal["good", "warn", "bad", "unknown"]


@dataclass(frozen=True)
class Answer:
    """A question that a reader brings, the verdict in words, and the numbers that decided."""

    question: str
    verdict: str
    level: Level = "unknown"
    reasons: Sequence[str] = ()


@dataclass(frozen=True)
class Picture:
    """A figure with its caption and, where it differs from the report's, the command that draws it."""

    name: str
    title: str
    caption: str
    figure: Figure
    command: str | None = None


@dataclass(frozen=True)
class Grid:
    """A table. `definitions` explains columns; a reader gets each with one click."""

    name: str
    title: str
    table: pd.DataFrame
    caption: str = ""
    definitions: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Section:
    """A heading, some paragraphs, and pictures and tables in the given order."""

    title: str
    text: Sequence[str] = ()
    blocks: Sequence[Picture | Grid] = ()


@dataclass(frozen=True)
class Document:
    """A whole report: one HTML file and, beside it, every table and picture on its own."""

    title: str
    summary: str
    answers: Sequence[Answer]
    sections: Sequence[Section]
    command: str
    provenance: Mapping[str, Any]

    def pictures(self) -> list[Picture]:
        """All pictures, in reading order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Picture)]

    def grids(self) -> list[Grid]:
        """All tables, in reading order."""
        return [block for section in self.sections for block in section.blocks if isinstance(block, Grid)]

    def words(self) -> str:
        """Everything that the report says in words, columns of tables included."""
        answers = [word for one in self.answers for word in (one.question, one.verdict, *one.reasons)]
        sections = [word for one in self.sections for word in (one.title, *one.text)]
        blocks = [word for section in self.sections for one in section.blocks for word in (one.title, one.caption)]
        columns = [str(column).replace("_", " ") for grid in self.grids() for column in grid.table.columns]
        return " ; ".join([self.title, self.summary, *answers, *sections, *blocks, *columns])
