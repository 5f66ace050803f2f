"""Figure 3 of paper A: positional codes. Only concatenated ones help low rank, and only with depth."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale, published
from rankfall.figures.trained import gather, points, shared_error
from rankfall.progress import Progress, silent
from rankfall.training.cell import POSITIONS, Cell
from rankfall.training.grid import read_points

GRID = "amsel-fig3"
BY = ("layers", "positions", "rank")
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"dim": 8, "position_width": 8, "points": 4, "feed_forward": 32, "batch": 16, "steps": 100},
    # Width 8: at 16, three layers with the norm after each branch are still on their way down after two minutes.
    "quick": {"dim": 8, "position_width": 8, "points": 4, "feed_forward": 64, "batch": 64, "steps": 2000},
}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    cells = figure_cells(scale)
    known = {
        (int(row["layers"]), row["positional_encoding"], int(row["rank"])): float(row["mse_best"])
        for row in published("amsel_fig3.csv")
    }
    trained, notes = gather(cells, scale, progress, BY, (GRID,))
    found = points(trained, BY, known if scale == "paper" else {})
    if scale != "paper":
        notes = [f"d = {cells[0].dim} with {cells[0].position_width} learned coordinates, not 64 with 64."]
    claims = depth_claims(found) if scale != "smoke" else []
    return FigureOutcome(
        points=found,
        claims=claims,
        tables={"figure3": found},
        draw=lambda: rank_curves(
            sorted(found, key=lambda record: (record["layers"], POSITIONS.index(record["positions"]))),
            panel=lambda record: f"{record['layers']} layer{'s' if record['layers'] > 1 else ''}",
            line=lambda record: f"positions {record['positions']}",
            width=lambda record: cells[0].dim,
        ),
        notes=notes,
    )


def figure_cells(scale: Scale) -> list[Cell]:
    """Budget d^2.5, that is 8 copies; small scales train lowest and full rank, on fresh data only."""
    if scale == "paper":
        return read_points(GRID)
    base = Cell(**SMALL[scale], multiplier=2, learning_rate=0.005, rank=1, data="fresh")
    return [
        dataclasses.replace(base, layers=layers, positions=positions, rank=rank)
        for layers in (1, 3)
        for positions in POSITIONS
        for rank in (1, base.dim)
    ]


def depth_claims(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """With three layers concatenated codes beat none at the lowest rank; the gain in one layer is smaller."""
    rank = min(point["rank"] for point in found)
    by_setting = {tuple(point[name] for name in BY): point for point in found}
    wanted = [(layers, positions, rank) for layers in (1, 3) for positions in ("none", "concatenated")]
    if any(setting not in by_setting for setting in wanted):
        return []
    column = shared_error(*(by_setting[setting] for setting in wanted))
    if column is None:
        return []
    gains = {
        layers: by_setting[layers, "none", rank][column] / by_setting[layers, "concatenated", rank][column]
        for layers in (1, 3)
    }
    return [
        Claim(
            f"at r = {rank}, concatenated codes help more in three layers than in one",
            gains[3] > gains[1],
            f"error without codes over error with: {gains[3]:.2f} in three layers, {gains[1]:.2f} in one",
        )
    ]


REPRODUCTION = Reproduction(
    "amsel/fig3", "Positional codes: none, additive, concatenated, against rank and depth", ("A-fig3", "A-thm7"), run
)
