"""Figures and tables of the papers, regenerated beside their published values."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame, plain
from rankfall.catalogue import FIGURES
from rankfall.destinations import require_writable_folder
from rankfall.errors import RequestError, require
from rankfall.progress import Progress, part, silent
from rankfall.sources import read_json

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from rankfall.figures.base import FigureOutcome, Reproduction
    from rankfall.report.document import Document

OUTCOMES = "outcomes.json"


@final
@dataclass(frozen=True, repr=False, eq=False)
class ReproductionResult(Result):
    """Each figure with what it gave."""

    verb: ClassVar[str] = "reproduce"
    runs: list[tuple[Reproduction, FigureOutcome, dict[str, Any]]]
    scale: str

    @property
    def figures(self) -> list[dict[str, Any]]:
        """One record per figure: points, claims, notes, whether it agrees (at paper scale) and holds."""
        return [record for _, _, record in self.runs]

    @property
    def agrees(self) -> bool | None:
        """Every published point is met; None where none can be compared, as below paper scale."""
        decided = [record["agrees"] for record in self.figures if record["agrees"] is not None]
        return all(decided) if decided else None

    @property
    def holds(self) -> bool | None:
        """Whatever can be decided at this scale holds; None when nothing can."""
        decided = [record["holds"] for record in self.figures if record["holds"] is not None]
        return all(decided) if decided else None

    def tables(self) -> dict[str, pd.DataFrame]:
        """`figures`: one row each; then the points and tables of each figure."""
        from rankfall.report.gallery import block_name

        shown = ("id", "title", "scale", "standing", "seconds")
        made = {"figures": frame({name: record[name] for name in shown} for record in self.figures)}
        for figure, outcome, _ in self.runs:
            if outcome.points:
                made[block_name(figure.id, "points")] = frame(outcome.points)
            made |= {block_name(figure.id, name): table for name, table in outcome.tables.items()}
        return made

    def save(self, folder: str | Path, *, command: str | None = None) -> Path:
        """Write the gallery into `folder`: one page, every table, every picture, and the outcomes as JSON.

        Figures that an earlier call wrote there stay: in the outcomes, and named on the page.
        """
        from rankfall.report.gallery import gallery
        from rankfall.report.page import write

        into = require_writable_folder(folder, "the report")
        mine = {one["id"] for one in self.figures}
        others = [one for one in _outcomes_in(into) if one["id"] not in mine]
        page = write(gallery(self.runs, command or f"rankfall.{self.verb}(...) in Python", others), into)
        (into / OUTCOMES).write_text(json.dumps(plain([*others, *self.figures]), indent=1) + "\n")
        return page

    def _record(self) -> dict[str, Any]:
        return {"figures": self.figures}

    def _lines(self) -> list[str]:
        lines = [f"{one['id']} {one['title']}: {one['standing']} ({one['seconds']:.1f} s)" for one in self.figures]
        return [f"{len(self.figures)} figures at scale {self.scale}", *lines]

    def _figure(self) -> Figure:
        drawn = next((outcome.draw for _, outcome, _ in self.runs if outcome.draw is not None), None)
        if drawn is None:
            raise RequestError(required="a figure with a picture", got="none", remedy="reproduce another one")
        return drawn()

    def _document(self, command: str) -> Document:
        from rankfall.report.gallery import gallery

        return gallery(self.runs, command)


def _outcomes_in(folder: Path) -> list[dict[str, Any]]:
    """The figures that a folder holds already; none where its file of outcomes is missing or no such file."""
    try:
        found = read_json(folder / OUTCOMES)
    except (OSError, ValueError):
        return []
    told = ("id", "title", "standing", "scale")
    rows = found if isinstance(found, list) else []
    return [one for one in rows if isinstance(one, dict) and all(isinstance(one.get(name), str) for name in told)]


def reproduce(
    *figures: str, scale: str = "quick", every: bool = False, progress: Progress = silent
) -> ReproductionResult:
    """Regenerate figures or tables of the papers, ours beside published: names such as `wu/fig1`, or `every` one.

    `scale`: smoke (seconds), quick (a minute or two) or paper.
    """
    from rankfall.figures.base import SCALES

    require(
        scale in SCALES,
        required=f"scale to be one of {', '.join(SCALES)}",
        got=scale,
        remedy="quick suits a laptop",
    )
    require(
        bool(figures) != every,
        required="figures to reproduce, or all of them",
        got="both" if figures else "neither",
        remedy=f"name some of {', '.join(FIGURES.names)}",
    )
    chosen = [FIGURES[name] for name in (FIGURES.names if every else figures)]
    runs = []
    for place, figure in enumerate(chosen):
        start = time.perf_counter()
        inner = part(progress, place / len(chosen), (place + 1) / len(chosen), figure.id)
        outcome = figure.run(scale, inner)  # type: ignore[arg-type]
        runs.append((figure, outcome, outcome.record(figure, scale, time.perf_counter() - start)))  # type: ignore[arg-type]
    return ReproductionResult(runs, scale)
