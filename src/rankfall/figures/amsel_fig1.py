"""Figure 1 of paper A: error of trained transformers against rank, by depth and parameters per layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale, published
from rankfall.figures.trained import ERRORS, gather, points, shared_error
from rankfall.progress import Progress, silent
from rankfall.training.cell import DATA, Cell
from rankfall.training.grid import read_points

BY = ("layers", "multiplier", "rank")
GRIDS = ("amsel-fig1", "amsel-fig1-fresh", "amsel-fig1-extra")
"""The last: runs that were added for two of the points, at other rates; the best setting counts."""
CLIFF: dict[Scale, float] = {"smoke": 2.0, "quick": 5.0, "paper": 5.0}
"""The error at r = d/2 is at least so many times that at r = d, in one layer with d^2 parameters.

At d = 8 and a few hundred steps, full rank is still on its way down."""
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"dim": 8, "points": 4, "feed_forward": 32, "batch": 64, "steps": 600},
    "quick": {"dim": 16, "points": 8, "feed_forward": 64, "batch": 64, "steps": 3000},
}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    cells = figure_cells(scale)
    known = published_errors()
    trained, notes = gather(cells, scale, progress, BY, GRIDS)
    found = points(trained, BY, known if scale == "paper" else {})
    if scale != "paper":
        notes = [f"d = {cells[0].dim}, not 64: the crosses are the published points at the same rank over width."]
    drawn = found if scale == "paper" else [*found, *_published_records(known)]
    return FigureOutcome(
        points=found,
        claims=[claim for claim in (cliff(found, cells[0].dim, CLIFF[scale]),) if claim is not None],
        tables={"figure1": found},
        draw=lambda: rank_curves(
            drawn,
            panel=lambda record: f"{record['layers']} layer{'s' if record['layers'] > 1 else ''}",
            line=lambda record: f"m = {record['multiplier']}",
            width=lambda record: record.get("width", cells[0].dim),
        ),
        notes=[*notes, REPEATED],
    )


REPEATED = (
    "The published numbers are training losses on the same 100 batches seen again and again; `ours` is computed in "
    "the same way, `trained_fresh` on new data in every step."
)


def published_errors() -> dict[tuple[int, ...], float]:
    """The published points, by layers, multiplier and rank."""
    by = ("layers", "width_multiplier", "rank")
    return {tuple(int(row[name]) for name in by): float(row["mse_best"]) for row in published("amsel_fig1.csv")}


def figure_cells(scale: Scale) -> list[Cell]:
    """The cells of the figure: on the repeated sample and, beside them, on fresh data."""
    if scale == "paper":
        return [cell for grid in GRIDS for cell in read_points(grid)]
    base = Cell(**SMALL[scale], rank=1)
    return [
        dataclasses.replace(base, rank=2**power, data=data, seed=seed)
        for power in range(base.dim.bit_length())
        for data in DATA
        for seed in range(1 if scale == "smoke" else 2)
    ]


def cliff(found: Sequence[Mapping[str, Any]], dim: int, fold: float) -> Claim | None:
    """Between half and full rank the error of one layer falls so many fold; None where cells are missing."""
    line = {p["rank"]: p for p in found if (p["layers"], p["multiplier"]) == (1, 1)}
    ends = [line[rank] for rank in (dim // 2, dim) if rank in line]
    measured = shared_error(*ends) if len(ends) == 2 else None
    if measured is None:
        return None
    half, full = (point[measured] for point in ends)
    return Claim(
        statement=f"one layer, d^2 parameters: from r = {dim // 2} to {dim} the {ERRORS[measured]} falls at least "
        f"{fold:g}-fold",
        holds=half >= fold * full,
        evidence=f"{half:.4g} to {full:.4g}, {half / full:.1f}-fold",
    )


def _published_records(known: Mapping[tuple[int, ...], float]) -> list[dict[str, Any]]:
    """The published points of the line that the small scales have, at their own width."""
    return [
        {"layers": layers, "multiplier": multiplier, "rank": rank, "published": value, "width": 64}
        for (layers, multiplier, rank), value in known.items()
        if (layers, multiplier) == (1, 1)
    ]


REPRODUCTION = Reproduction(
    "amsel/fig1", "Trained transformers: error against rank, by depth and width", ("A-fig1",), run
)
