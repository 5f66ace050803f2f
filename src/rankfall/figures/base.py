"""What a reproduction is: a figure or table of a paper, run at a scale, giving points, claims and a picture."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args

from rankfall.progress import Progress, silent
from rankfall.provenance import provenance

if TYPE_CHECKING:
    from matplotlib.figure import Figure


Scale = Literal["smoke", "quick", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
PAPER: Scale = "paper"


@dataclass(frozen=True)
class Claim:
    """A statement that can fail, whether it held, and the number that decided."""

    statement: str
    holds: bool
    evidence: str


@dataclass(frozen=True)
class FigureOutcome:
    """What running a reproduction gave.

    `points` are records that each have at least `published`, `ours` and `agrees` (None where nothing was published).
    `claims` are what a qualitative figure shows: they can hold or fail, but only published points can agree.
    `tables` are written as CSV by name; rows
    given as records become a table.
    """

    points: Sequence[Mapping[str, Any]]
    claims: Sequence[Claim] = ()
    tables: Mapping[str, Any] = field(default_factory=dict)
    draw: Callable[[], Figure] | None = None
    notes: Sequence[str] = ()

    def __post_init__(self) -> None:
        import pandas as pd

        object.__setattr__(self, "tables", {name: pd.DataFrame(rows) for name, rows in self.tables.items()})

    def record(self, figure: Reproduction, scale: Scale, seconds: float) -> dict[str, Any]:
        """The outcome as plain values: what `--json` prints and what a folder of results keeps."""
        return {
            "id": figure.id,
            "title": figure.title,
            "statements": list(figure.statements),
            "scale": scale,
            "agrees": self.agrees if scale == PAPER else None,
            "holds": self.holds,
            "standing": self.standing(scale),
            "points": [dict(point) for point in self.points],
            "claims": [asdict(claim) for claim in self.claims],
            "notes": list(self.notes),
            "seconds": seconds,
            "provenance": provenance(f"rankfall reproduce {figure.id} --scale {scale}"),
        }

    @property
    def agrees(self) -> bool | None:
        """Every published point is met, as far as ours can be compared with any; None where none can."""
        decided = self._decided()
        return all(decided) if decided else None

    @property
    def holds(self) -> bool | None:
        """Every claim holds and every point that can be compared is met; None when nothing decides."""
        verdicts = [*self._decided(), *(claim.holds for claim in self.claims)]
        return all(verdicts) if verdicts else None

    def standing(self, scale: Scale) -> str:
        """What the run shows, in words. Only a run at the paper's own scale can agree with the paper."""
        decided = self._decided()
        if self.holds is None:
            return "nothing to decide: ours alone"
        if scale != PAPER:
            return f"its shape {'holds' if self.holds else 'does NOT hold'} at this scale"
        if not decided:
            return f"no number published; its claims {'hold' if self.holds else 'do NOT all hold'}"
        if not all(decided):
            return f"does NOT agree: {sum(decided)} of {len(decided)} published points met"
        rest = "" if self.holds else ", but not every claim holds"
        return f"agrees with the paper in {len(decided)} of {len(decided)} published points{rest}"

    def _decided(self) -> list[bool]:
        return [point["agrees"] for point in self.points if point.get("agrees") is not None]


class FigureRun(Protocol):
    """Compute a figure: `smoke` in seconds, `quick` in a minute or two on two cores, `paper` as published."""

    def __call__(self, scale: Scale, progress: Progress = silent) -> FigureOutcome:
        """Give the points, claims, tables and picture at this scale."""


@dataclass(frozen=True)
class Reproduction:
    """One figure or table, named by the paper's own numbering."""

    id: str
    title: str
    statements: tuple[str, ...]
    """The statements of the papers that this figure makes visible, such as `A-fig1` or `B-thm2`."""
    run: FigureRun
    columns: Mapping[str, str] = field(default_factory=dict)
    """What the columns of its tables mean, where the report's own words do not say it."""


def published(name: str) -> list[dict[str, str]]:
    """The records of a file in `published/`, as text."""
    with (resources.files("rankfall.figures.published") / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
