"""What every public function returns: fields, a record, tables, a picture and a report, and a short text of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from rankfall.destinations import require_writable_folder
from rankfall.store.files import plain as plain

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.report.document import Document

ROWS_IN_NOTEBOOKS = 12


class Result(ABC):
    """What a public function found. Every result can be printed, tabulated, drawn and saved as a report."""

    verb: ClassVar[str]
    """The function, and the command, that gives this result."""

    def record(self) -> dict[str, Any]:
        """The result as plain values: what the command prints with `--json`."""
        values: dict[str, Any] = plain(self._record())
        return values

    @abstractmethod
    def tables(self) -> dict[str, pd.DataFrame]:
        """The result as flat tables by name, the main one first."""

    def to_frame(self) -> pd.DataFrame:
        """The main table."""
        return next(iter(self.tables().values()))

    def plot(self, path: str | Path | None = None) -> Figure:
        """The result as a Matplotlib figure, also written to `path` (.png, .svg or .pdf) where one is given."""
        figure = self._figure()
        if path is not None:
            from rankfall.drawing.canvas import save

            save(figure, Path(path))
        return figure

    def save(self, folder: str | Path, *, command: str | None = None) -> Path:
        """Write the report into `folder`: one page, every table, every picture. Returns the path of the page."""
        from rankfall.report.page import write

        into = require_writable_folder(folder, "the report")
        return write(self._document(command or f"rankfall.{self.verb}(...) in Python"), into)

    def __repr__(self) -> str:
        first, *rest = self._lines()
        return "\n".join([f"{type(self).__name__}: {first}", *(f"  {line}" for line in rest)])

    def _repr_html_(self) -> str:
        first, *rest = self._lines()
        lines = "".join(f"<div>{escape(line)}</div>" for line in rest)
        rows = self.to_frame().head(ROWS_IN_NOTEBOOKS).to_html(index=False, escape=True, border=0)
        return f"<div><strong>{escape(first)}</strong>{lines}{rows}</div>"

    @abstractmethod
    def _record(self) -> Mapping[str, Any]:
        """The result by name, tensors and all."""

    @abstractmethod
    def _lines(self) -> Sequence[str]:
        """The answer in a few lines; the first one stands alone."""

    @abstractmethod
    def _figure(self) -> Figure:
        """The picture."""

    def _notes(self) -> Sequence[str]:
        """What a reader of the report must know besides."""
        return ()

    def _document(self, command: str) -> Document:
        """The report: the answer, the picture, the tables."""
        from rankfall.provenance import provenance
        from rankfall.report.document import Answer, Document, Grid, Picture, Section
        from rankfall.report.verb_definitions import definitions_for

        first, *rest = self._lines()
        tables = [
            Grid(name, name.replace("_", " ").capitalize(), table, definitions=definitions_for(self.verb))
            for name, table in self.tables().items()
        ]
        picture = Picture("picture", first, "", self._figure())
        return Document(
            title=f"rankfall {self.verb}",
            summary=first,
            answers=[Answer(f"What did {self.verb} find?", rest[0] if rest else first, reasons=rest[1:])],
            sections=[Section("Picture", self._notes(), [picture]), Section("Tables", (), tables)],
            command=command,
            provenance=provenance(command),
        )


def frame(rows: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
    """Records as a table whose cells are numbers, truth values and words: what is nested becomes words."""
    import pandas as pd

    nested = (dict, list, tuple, set, frozenset)
    return pd.DataFrame(
        [{name: str(value) if isinstance(value, nested) else value for name, value in row.items()} for row in rows]
    )
