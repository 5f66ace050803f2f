"""Which architectures of the installed library can be audited, and how far."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require
from rankfall.progress import Progress, silent

PARTS = ("depth", "masks", "heads", "ablation", "controls")

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, repr=False, eq=False)
class CoverageResult(Result):
    """One record per architecture."""

    verb: ClassVar[str] = "coverage"
    architectures: list[dict[str, Any]]

    @property
    def counts(self) -> dict[str, int]:
        """How many architectures have each outcome."""
        return dict(Counter(row["outcome"] for row in self.architectures))

    @property
    def grades(self) -> dict[str, dict[str, int]]:
        """For each part of an audit, how many architectures have it in full, in part, or not."""
        return {part: dict(Counter(row[part] for row in self.architectures)) for part in PARTS}

    @property
    def complete(self) -> int:
        """How many architectures have every part of an audit in full."""
        return sum(all(row[part] == "exact" for part in PARTS) for row in self.architectures)

    def tables(self) -> dict[str, pd.DataFrame]:
        """`architectures`: one row each."""
        return {"architectures": frame(self.architectures)}

    def _record(self) -> dict[str, Any]:
        return {
            "architectures": self.architectures,
            "counts": self.counts,
            "grades": self.grades,
            "complete": self.complete,
        }

    def _lines(self) -> list[str]:
        lines = [f"{name}: {count}" for name, count in sorted(self.counts.items())]
        grades = [
            f"{part}: {', '.join(f'{count} {grade}' for grade, count in sorted(counts.items()))}"
            for part, counts in self.grades.items()
        ]
        return [f"{len(self.architectures)} architectures, {self.complete} complete", *lines, *grades]

    def _figure(self) -> Figure:
        from rankfall.drawing.canvas import canvas

        figure, axes = canvas()
        names = sorted(self.counts)
        axes[0, 0].bar(names, [self.counts[name] for name in names])
        axes[0, 0].set_ylabel("architectures")
        axes[0, 0].tick_params(axis="x", rotation=30)
        drawn: Figure = figure
        return drawn


def coverage(
    types: Sequence[str] | None = None, *, outcome: str = "", most_used: bool = False, progress: Progress = silent
) -> CoverageResult:
    """List every architecture in the installed transformers library: whether recording a small random model of it was
    bit-equal to eager attention, and how much of an audit of it there is: depth, masks, heads, ablation, controls.

    With model types, measures those now instead. `outcome` keeps rows whose outcome holds these words, `most_used`
    the sixty types that are used most.
    """
    from rankfall.models.architectures.coverage import check_architecture, installed_architectures, known_type

    if not types:
        return CoverageResult(_listed(outcome, most_used))
    require(
        not outcome and not most_used,
        required="either model types, which are checked now, or a choice from the table that ships",
        got=f"{', '.join(types)} and {f'outcome {outcome!r}' if outcome else 'most_used'}",
        remedy="leave one of them out",
    )
    # All names first: a slip in the last must not show after the others were measured.
    names = list(dict.fromkeys(known_type(name) for name in types))
    reach = installed_architectures()
    measured = []
    for done, name in enumerate(names):
        progress(f"building and auditing a small random {name}", done / len(names))
        measured.append({"reach": reach[name], **asdict(check_architecture(name))})
    return CoverageResult(measured)


def _listed(outcome: str, most_used: bool) -> list[dict[str, Any]]:
    """Rows of the table that ships; a choice of none is refused."""
    from rankfall.models.architectures.coverage import OUTCOMES, coverage_table
    from rankfall.models.architectures.coverage import most_used as most_used_types

    words = re.compile(rf"(?<!\w){re.escape(outcome)}(?!\w)" if outcome else "")
    require(
        any(words.search(one) for one in OUTCOMES),
        required=f"an outcome, or a word of one: {'; '.join(OUTCOMES)}",
        got=repr(outcome[:80]),
        remedy="leave it out for all architectures",
    )
    wanted = most_used_types() if most_used else None
    rows = [row for row in coverage_table() if wanted is None or row["model_type"] in wanted]
    chosen = [row for row in rows if words.search(row["outcome"])]
    there = Counter(row["outcome"] for row in rows).most_common()
    require(
        len(chosen) > 0,
        required=f"an outcome that one of {len(rows)} architectures has",
        got=f"{outcome!r}, which none has",
        remedy=f"there are {'; '.join(f'{name} ({count})' for name, count in there)}",
    )
    return chosen
