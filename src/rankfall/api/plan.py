"""Heads and rank for a width, at equal parameters and at equal FLOPs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from rankfall.api.result import Result, frame
from rankfall.errors import require
from rankfall.progress import Progress, silent
from rankfall.system import require_device

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True, repr=False, eq=False)
class PlanResult(Result):
    """Candidates that cost what the usual choice costs."""

    verb: ClassVar[str] = "plan"
    width: int
    layers: int
    context: int
    hidden: int
    device: str | None
    """Where steps were timed; None where they were not."""
    candidates: list[dict[str, Any]]
    """One record per pair of heads and rank, the usual choice first."""
    left_out_ranks: list[int]
    """Ranks of which no number of heads costs the same."""
    implications: str
    """What the floor says, and what it does not."""

    def tables(self) -> dict[str, pd.DataFrame]:
        """`candidates`: one row each."""
        return {"candidates": frame(self.candidates)}

    @property
    def title(self) -> str:
        """What was planned for, in words."""
        return f"d = {self.width}, {self.layers} layers, {self.context} tokens"

    def _record(self) -> dict[str, Any]:
        return {
            "dim": self.width,
            "layers": self.layers,
            "context": self.context,
            "hidden": self.hidden,
            "device": self.device,
            "left_out_ranks": self.left_out_ranks,
            "implications": self.implications,
            "candidates": self.candidates,
        }

    def _lines(self) -> list[str]:
        usual = self.candidates[0]
        best = min(self.candidates, key=lambda row: row["mse_lower_bound"])
        return [
            self.title,
            f"usual: heads {usual['heads']}, rank {usual['rank']}, floor {usual['mse_lower_bound']:.4f}",
            f"lowest floor of {len(self.candidates)} candidates: heads {best['heads']}, rank {best['rank']}, "
            f"floor {best['mse_lower_bound']:.4f}",
        ]

    def _notes(self) -> list[str]:
        return [self.implications]

    def _figure(self) -> Figure:
        from rankfall.drawing.plan import draw_plan

        return draw_plan(self.candidates, self.title)


def plan(
    width: int,
    *,
    layers: int = 12,
    context: int = 1024,
    heads: int | None = None,
    kv_heads: int | None = None,
    group: int = 1,
    rank: int | Sequence[int] | None = None,
    value_rank: int | None = None,
    hidden: int | None = None,
    seconds: float = 60.0,
    time: bool = True,
    device: str = "cpu",
    store: str | Path | None = None,
    task: str = "farthest",
    progress: Progress = silent,
) -> PlanResult:
    """Candidate (heads, rank) pairs that cost what the usual choice costs: size, FLOPs, cache, floor, step time.

    `heads` are those of the reference, whose rank is width / heads (default: head size near 64); `rank` limits the
    ranks compared. Step times are measured for `seconds` altogether unless `time` is off. A `store` of trained runs
    adds the error that they reached on `task`.
    """
    from rankfall.planning.candidates import Sharing, candidates, default_ranks, reference_shape, usual_heads
    from rankfall.planning.costs import Stopwatch
    from rankfall.planning.table import IMPLICATIONS, accuracy_column, floor_column, timing_column
    from rankfall.planning.table import plan as rows_of

    require(seconds > 0, required="seconds to be positive", got=seconds, remedy="measure no time instead")
    ranks = [rank] if isinstance(rank, int) else list(rank) if rank else None
    sharing = Sharing(kv_heads, group)
    wide = 4 * width if hidden is None else hidden
    usual = usual_heads(width, sharing) if heads is None else heads
    chosen = candidates(reference_shape(width, layers, context, usual, wide, sharing), sharing, ranks, value_rank)
    timings = {}
    if time:
        timings = Stopwatch(seconds, require_device(device)).measure([one.shape for one in chosen], progress)
    columns = [floor_column, timing_column(timings)]
    if store is not None:
        from rankfall.store.query import rows_of as runs_of
        from rankfall.store.store import Store

        columns.append(accuracy_column(runs_of(Store(Path(store), create=False))[0], task))
    rows = rows_of(chosen, columns)
    kept = {row["rank"] for row in rows}
    return PlanResult(
        width=width,
        layers=layers,
        context=context,
        hidden=wide,
        device=device if time else None,
        candidates=rows,
        left_out_ranks=[one for one in ranks or default_ranks(width) if one not in kept],
        implications=IMPLICATIONS,
    )
