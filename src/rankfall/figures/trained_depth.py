"""What depth buys: the published protocol's training loss, the same weights on fresh data, training on fresh data.

Not a figure of the papers. Figure 1 of paper A shows training losses on a sample that repeats; there three layers of
low rank look much better than one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.rank_curves import rank_curves
from rankfall.figures.amsel_fig1 import BY, published_errors
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.figures.trained import gather, points
from rankfall.progress import Progress, silent
from rankfall.training.cell import Cell
from rankfall.training.grid import read_points

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Point = Mapping[str, Any]

GRIDS = ("depth", "amsel-fig1")
"""Trained on fresh data by the recipe `stable`; and by the published protocol."""
PUBLISHED_AT_DEPTH: dict[str, Any] = {"start": "copies", "warm_up_from": "zero"}
LOW = 8
"""Ranks up to the width over this count as low."""
SMALL: dict[Scale, dict[str, Any]] = {
    "smoke": {"dim": 8, "points": 4, "feed_forward": 32, "batch": 32, "steps": 200},
    "quick": {"dim": 16, "points": 8, "feed_forward": 64, "batch": 64, "steps": 1200},
}
DEEP: dict[Scale, int] = {"smoke": 3, "quick": 5}
PANELS = {
    "as published: training loss": ("published", "ours"),
    "the same weights on fresh data": ("same_weights_fresh",),
    "trained on fresh data, recipe stable": ("trained_fresh",),
}
"""What the panels show, by column."""


def run(scale: Scale, progress: Progress = silent) -> FigureOutcome:
    cells = figure_cells(scale)
    dim, seeds = cells[0].dim, len({cell.seed for cell in cells if cell.data == "fresh"})
    trained, notes = gather(cells, scale, progress, BY, GRIDS)
    asked = {tuple(getattr(cell, name) for name in BY) for cell in cells}
    known = {key: value for key, value in published_errors().items() if scale == "paper" and key in asked}
    found = [{**point, "tolerance": None, "agrees": None} for point in points(trained, BY, known)]
    found.sort(key=lambda point: tuple(point[name] for name in BY))
    return FigureOutcome(
        points=found,
        claims=depth_claims(found, dim) if scale != "smoke" else [],
        tables={"depth": found},
        draw=lambda: _draw(found, dim),
        notes=[
            *notes,
            f"{cells[0].steps:,} steps, {'one seed' if seeds == 1 else f'{seeds} seeds'}. `published` and `ours` are "
            "training losses on the repeated sample, compared in amsel/fig1; the other columns are errors on fresh "
            "data. Outputting zero costs 1.",
        ],
    )


def figure_cells(scale: Scale) -> list[Cell]:
    """By the recipe `stable` on fresh data and, beside them, by the published protocol, the same shapes."""
    if scale == "paper":
        stable, published = map(read_points, GRIDS)
        budgets = {cell.multiplier for cell in stable}
        return [*stable, *(cell for cell in published if cell.multiplier in budgets)]
    base = Cell(**SMALL[scale], rank=1)
    shapes = [
        dataclasses.replace(base, layers=layers, rank=rank)
        for layers in (1, DEEP[scale])
        for rank in (1, base.dim // 2, base.dim)
    ]
    return [
        *(dataclasses.replace(cell, data="fresh", recipe="stable") for cell in shapes),
        *(dataclasses.replace(cell, **(PUBLISHED_AT_DEPTH if cell.layers > 1 else {})) for cell in shapes),
    ]


def depth_claims(found: Sequence[Point], dim: int) -> list[Claim]:
    """What depth gains by the published protocol and on fresh data, for every depth and budget that has the cells."""
    by_key = {tuple(point[name] for name in BY): point for point in found}
    claims: list[Claim | None] = []
    for layers, multiplier in sorted({key[:2] for key in by_key if key[0] > 1}):
        pairs = [
            (by_key[1, multiplier, rank], point)
            for (depth, budget, rank), point in sorted(by_key.items())
            if (depth, budget) == (layers, multiplier) and (1, multiplier, rank) in by_key
        ]
        where = f"{layers} layers, m = {multiplier}"
        claims += [
            _memorised(where, pairs, dim),
            _helps(where, pairs, dim),
            _halves(where, pairs),
            _rank_decides(where, [deep for _, deep in pairs]),
        ]
    return [claim for claim in claims if claim is not None]


def _memorised(where: str, pairs: Sequence[tuple[Point, Point]], dim: int) -> Claim | None:
    gaining = [
        (one, deep)
        for one, deep in pairs
        if deep["rank"] * LOW <= dim and _known("ours", one, deep) and deep["ours"] < one["ours"]
    ]
    if not gaining:
        return None
    worse = [deep for one, deep in gaining if deep["same_weights_fresh"] > one["same_weights_fresh"]]
    one, deep = min(gaining, key=lambda pair: pair[1]["ours"] / pair[0]["ours"])
    return Claim(
        f"{where}, published protocol, r <= {dim // LOW}: what depth takes off the training loss of one layer is "
        "memorised; on fresh data the same weights are worse than one layer's",
        len(worse) == len(gaining),
        f"worse at {len(worse)} of {len(gaining)} ranks; at r = {deep['rank']} {one['ours']:.4g} falls to "
        f"{deep['ours']:.4g} in training, {one['same_weights_fresh']:.4g} goes to {deep['same_weights_fresh']:.4g}",
    )


def _helps(where: str, pairs: Sequence[tuple[Point, Point]], dim: int) -> Claim | None:
    """Below full rank, since there one layer leaves little to gain."""
    both = [(one, deep) for one, deep in pairs if deep["rank"] < dim and _known("trained_fresh", one, deep)]
    if not both:
        return None
    better = [deep for one, deep in both if deep["trained_fresh"] < one["trained_fresh"]]
    shown = ", ".join(f"{one['trained_fresh']:.3g} to {deep['trained_fresh']:.3g}" for one, deep in both)
    return Claim(
        f"{where}, trained on fresh data by the recipe stable: below full rank less error than one layer",
        len(better) == len(both),
        f"at {len(better)} of {len(both)} ranks: {shown}",
    )


def _halves(where: str, pairs: Sequence[tuple[Point, Point]]) -> Claim | None:
    deep = max((deep for _, deep in pairs), key=lambda point: point["rank"], default=None)
    if deep is None or deep["trained_fresh"] is None or deep["same_weights_fresh"] is None:
        return None
    return Claim(
        f"{where}, r = {deep['rank']}, on fresh data: trained on it by the recipe stable, at most half the error of "
        "the published protocol",
        deep["trained_fresh"] <= deep["same_weights_fresh"] / 2,
        f"{deep['trained_fresh']:.4g} against {deep['same_weights_fresh']:.4g}",
    )


def _rank_decides(where: str, deep: Sequence[Point]) -> Claim | None:
    errors = {point["rank"]: point["trained_fresh"] for point in deep if point["trained_fresh"] is not None}
    if len(errors) < 2:
        return None
    low, full = min(errors), max(errors)
    return Claim(
        f"{where}, trained on fresh data by the recipe stable: r = {low} has at least 5 times r = {full}'s error",
        errors[low] >= 5 * errors[full],
        f"{errors[low]:.4g} against {errors[full]:.4g}",
    )


def _known(column: str, *records: Point) -> bool:
    return all(record[column] is not None for record in records)


def _draw(found: Sequence[Point], dim: int) -> Figure:
    """A row of panels for each budget, a line for each depth; what nobody has trained yet has no panel."""
    shown = {
        panel: columns for panel, columns in PANELS.items() if any(_known(name, p) for p in found for name in columns)
    }
    budgets = sorted({point["multiplier"] for point in found})
    records = [
        {
            "panel": f"{panel}, m = {budget}" if len(budgets) > 1 else panel,
            **{name: point[name] for name in (*BY, *columns)},
        }
        for budget in budgets
        for panel, columns in shown.items()
        for point in found
        if point["multiplier"] == budget
    ]
    return rank_curves(
        records,
        panel=lambda record: record["panel"],
        line=lambda record: f"{record['layers']} layer{'s' if record['layers'] > 1 else ''}",
        width=lambda record: dim,
        columns=len(shown),
    )


REPRODUCTION = Reproduction(
    "rankfall/depth", "What depth buys: in training loss, as published, and on fresh data", ("A-fig1",), run
)
