"""What lets depth train: the published recipe and `stable`, the same cells side by side, on fresh data.

Not a figure of the papers. At five layers and d^2 parameters the published points of figure 1 stand at 0.6 to 0.9.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from rankfall.catalogue import RECIPES
from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.amsel_fig1 import published_errors
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.trained import error_of, gather, points
from rankfall.progress import Progress, silent
from rankfall.training.cell import Cell
from rankfall.training.grid import read_points

GRID = "depth"
BY = ("layers", "multiplier", "rank", "recipe")
EXACT: dict[str, Any] = {"start": "copies", "warm_up_from": "zero"}
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"dim": 8, "points": 4, "feed_forward": 32, "batch": 32, "steps": 200, "layers": 3},
    "quick": {"dim": 16, "points": 8, "feed_forward": 64, "batch": 64, "steps": 1200, "layers": 5},
}


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    cells = figure_cells(scale)
    trained, notes = gather(cells, scale, progress, BY, (GRID,))
    asked = {tuple(getattr(cell, name) for name in BY) for cell in cells}
    known = {(*key, "published"): value for key, value in published_errors().items()}
    known = {key: value for key, value in known.items() if scale == "paper" and key in asked}
    found = points(trained, BY, known)
    return FigureOutcome(
        points=found,
        claims=recipe_claims(found) if scale != "smoke" else [],
        tables={"depth": found},
        draw=lambda: rank_curves(
            found,
            panel=lambda record: f"{record['layers']} layers, m = {record['multiplier']}",
            line=lambda record: f"recipe {record['recipe']}",
            width=lambda record: cells[0].dim,
        ),
        notes=[
            *notes,
            f"Fresh data, {cells[0].steps:,} steps. The published points are training losses after 100,000 steps "
            "on the repeated sample: shown for orientation, not judged. Outputting zero costs 1.",
        ],
    )


def figure_cells(scale: Scale) -> list[Cell]:
    """The same cells by every recipe, the published one with the start and the warm-up that were published."""
    if scale == "paper":
        return read_points(GRID)
    base = Cell(**SMALL[scale], rank=1, data="fresh")
    return [
        dataclasses.replace(base, rank=rank, recipe=recipe, **(EXACT if recipe == "published" else {}))
        for recipe in RECIPES.names
        for rank in (1, base.dim // 2, base.dim)
    ]


def recipe_claims(found: Sequence[Mapping[str, Any]]) -> list[Claim]:
    """At every depth and budget that has both: `stable` lowers the error at full rank, and rank still decides."""
    errors = {tuple(point[name] for name in BY): error_of(point) for point in found}
    claims = []
    for layers, multiplier in sorted({key[:2] for key in errors}):
        ranks = [key[2] for key in errors if key[:2] == (layers, multiplier)]
        plain, stable, low = (
            errors.get((layers, multiplier, rank, recipe))
            for rank, recipe in ((max(ranks), "published"), (max(ranks), "stable"), (min(ranks), "stable"))
        )
        where = f"{layers} layers, m = {multiplier}"
        if plain is not None and stable is not None:
            claims.append(
                Claim(
                    f"{where}: at full rank the stable recipe at least halves the error",
                    stable <= plain / 2,
                    f"{stable:.4g} against {plain:.4g}",
                )
            )
        if low is not None and stable is not None:
            claims.append(
                Claim(
                    f"{where}: the stable recipe leaves rank {min(ranks)} at least 5 times the error of full rank",
                    low >= 5 * stable,
                    f"{low:.4g} against {stable:.4g}",
                )
            )
    return claims


REPRODUCTION = Reproduction(
    "rankfall/depth", "What lets depth train: the published recipe and the stable one", ("A-fig1",), run
)
