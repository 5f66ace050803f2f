"""Figure 4 of paper A: more points are harder for low rank. Two layers, budget d^3."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale, published
from rankfall.figures.trained import error_of, gather, points, shared_error
from rankfall.progress import Progress, silent
from rankfall.training.cell import Cell
from rankfall.training.grid import read_points

GRID = "amsel-fig4"
BY = ("points", "rank")
MEMORISED = 5
"""Times the training loss that an error on fresh data must have for the loss to be called memory."""
LEARNED = 0.5
"""A training loss below this looks as if the task were learned; outputting zero costs one."""
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
        claims=[*length_claims(found), *memory_claims(found)],
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
    of_rank = [point for point in found if point["rank"] == rank and error_of(point) is not None]
    column = shared_error(*of_rank)
    if len(of_rank) < 2 or column is None:
        return []
    measured = sorted((point["points"], point[column]) for point in of_rank)
    return [
        Claim(
            f"at r = {rank} the error grows with the number of points",
            all(later[1] > earlier[1] for earlier, later in itertools.pairwise(measured)),
            ", ".join(f"N = {length}: {error:.4g}" for length, error in measured),
        )
    ]


def memory_claims(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """Where the figure shows that low rank has learned the task, new data show that it has learned the sample."""
    full = max(point["rank"] for point in found)
    return [
        Claim(
            f"N = {point['points']}, r = {point['rank']}: the training loss is memorised; on fresh data the same"
            f" weights have at least {MEMORISED} times as much error",
            point["same_weights_fresh"] >= MEMORISED * point["ours"],
            f"{point['ours']:.4g} in training, {point['same_weights_fresh']:.4g} on fresh data"
            + ("" if point["trained_fresh"] is None else f", {point['trained_fresh']:.4g} if trained on fresh data"),
        )
        for point in found
        if point["rank"] < full and point["ours"] is not None and point["ours"] < LEARNED
    ]


REPRODUCTION = Reproduction(
    "amsel/fig4", "Number of points: low rank degrades with the length of the context", ("A-fig4", "A-conj8"), run
)
