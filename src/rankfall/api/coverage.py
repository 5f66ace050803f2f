"""Which architectures of the installed library can be audited, and how far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.progress import Progress, silent

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
    def exact(self) -> bool:
        """Recording was bit-equal to eager attention in every one of them."""
        return all(row["outcome"] == "exact" for row in self.architectures)

    def tables(self) -> dict[str, pd.DataFrame]:
        """`architectures`: one row each."""
        return {"architectures": frame(self.architectures)}

    def _record(self) -> dict[str, Any]:
        return {"architectures": self.architectures, "counts": self.counts}

    def _lines(self) -> list[str]:
        lines = [f"{name}: {count}" for name, count in sorted(self.counts.items())]
        return [f"{len(self.architectures)} architectures", *lines]

    def _figure(self) -> Figure:
        from rankfall.drawing.canvas import canvas

        figure, axes = canvas()
        names = sorted(self.counts)
        axes[0, 0].bar(names, [self.counts[name] for name in names])
        axes[0, 0].set_ylabel("architectures")
        axes[0, 0].tick_params(axis="x", rotation=30)
        drawn: Figure = figure
        return drawn


def coverage(types: Sequence[str] | None = None, *, outcome: str = "", progress: Progress = silent) -> CoverageResult:
    """List every architecture in the installed transformers library: whether it uses the attention interface, and
    whether recording a small random model of it was bit-equal to eager attention when last measured.

    With model types, measures those now instead. `outcome` keeps rows whose outcome holds this word.
    """
    from rankfall.models.coverage import check_architecture, coverage_table, installed_architectures, known_type

    if not types:
        return CoverageResult([row for row in coverage_table() if outcome in row["outcome"]])
    reach = installed_architectures()
    rows = []
    for done, name in enumerate(types):
        progress(f"building and running a small random {name}", done / len(types))
        row = asdict(check_architecture(known_type(name)))
        rows.append({"reach": reach[row["model_type"]], **row})
    return CoverageResult(rows)
