"""How far a sweep is: work counted in floating-point operations, since cells differ by orders of magnitude."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rankfall.training.cell import CHUNK, Cell
from rankfall.training.cost import step_flops
from rankfall.training.plan import Group, Plan


@dataclass(frozen=True)
class Progress:
    """One look at a running sweep."""

    share: float
    """Of the work that was missing when the sweep began, between 0 and 1."""
    what: str


class Tally:
    """Counts chunks of every cell, whichever stack it is trained in."""

    def __init__(self, plan: Plan) -> None:
        self._total = plan.flops
        self._cells = sum(len(group) for group in plan.stacks)
        self._chunks: dict[Cell, int] = {}

    def chunk(self, group: Group, chunks: int, rows: Sequence[Mapping[str, Any]]) -> Progress:
        """Take note of a stack's progress."""
        self._chunks |= dict.fromkeys(group, chunks)
        done = sum(step_flops(cell) * count * CHUNK for cell, count in self._chunks.items())
        ended = sum(count == cell.chunks for cell, count in self._chunks.items())
        losses = [row["loss"] for row in rows if math.isfinite(row["loss"])]
        loss = f", loss {min(losses):.3g} to {max(losses):.3g}" if losses else ""
        what = (
            f"{ended} of {self._cells} cells; a stack of {len(group)} at step {chunks * CHUNK:,} "
            f"of {group[0].steps:,}{loss}"
        )
        return Progress(min(1.0, done / self._total) if self._total else 1.0, what)
