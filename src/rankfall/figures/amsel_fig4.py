"""Figure 4 of paper A: more points are harder for low rank. Two layers, budget d^3."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale, published
from rankfall.figures.trained import error_of, gather, points
from rankfall.progress import Progress, silent
from rankfall.training.cell import Cell
from rankfall.training.grid import read_points

GRID = "amsel-fig4"
BY = ("points", "rank")
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"dim": 8, "feed_forward": 32, "batch": 32, "steps": 200},
    "quick": {"dim": 16, "feed_forward": 64, "batch": 64, "steps": 2000},
}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    cells = figure_cells(scale)
    known = {
        (int(row["num_points"]), int(row["rank"])): float(row["mse_best"]) for row in published("amsel_fig4.csv")
    }
    trained, notes = gather(cells, scale, progress, BY, (GRID,))
    found = points(trained, BY, known if scale == "paper" else {})
    if scale != "paper":
        notes = [f"d = {cells[0].dim} and {cells[0].multiplier} copies, not 64 and 64."]
    return FigureOutcome(
        points=found,
        claims=length_claims(found),
        tables={"figure4": found},
        draw=lambda: rank_curves(
            sorted(found, key=lambda record: record["points"]),
            panel=lambda record: "two layers, budget d^3",
            line=lambda record: f"N = {record['points']}",
            width=lambda record: cells[0].dim,
        ),
        notes=notes,
    )


def figure_cells(scale: Scale) -> list[Cell]:
    """Two layers, 64 copies, N = 4, 16, 64, 256; small scales have shorter contexts and fresh data only."""
    if scale == "paper":
        return read_points(GRID)
    base = Cell(**SMALL[scale], layers=2, multiplier=2, learning_rate=0.005, rank=1, data="fresh")
    return [
        dataclasses.replace(base, points=length, rank=rank)
        for length in ((2, 8) if scale == "smoke" else (2, 4, 16))
        for rank in (1, base.dim)
    ]


def length_claims(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """At the lowest rank the error grows with every lengthening of the context."""
    rank = min(point["rank"] for point in found)
    errors = {point["points"]: error_of(point) for point in found if point["rank"] == rank}
    measured = [(length, error) for length, error in sorted(errors.items()) if error is not None]
    if len(measured) < 2:
        return []
    return [
        Claim(
            f"at r = {rank} the error grows with the number of points",
            all(later[1] > earlier[1] for earlier, later in itertools.pairwise(measured)),
            ", ".join(f"N = {length}: {error:.4g}" for length, error in measured),
        )
    ]


REPRODUCTION = Reproduction(
    "amsel/fig4", "Number of points: low rank degrades with the length of the context", ("A-fig4", "A-conj8"), run
)
