"""Error floor against the number of heads, one curve per rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.drawing.canvas import canvas
from rankfall.errors import MOST_HEADS, require
from rankfall.theory.head_bounds import HeadClass, Values, floor_value, heads_needed, plateau
from rankfall.theory.head_report import ranks_to_show

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKED = (1, 4, 8, 16, 24, 32, 40, 48, 56)


def draw_floors(
    dim: int,
    *,
    ranks: Sequence[int] | None = None,
    points: int = 2,
    skip: bool = False,
    generalised: bool = False,
    values: Values = "matrix",
) -> Figure:
    """The least error of any H heads of rank r, for every rank, from one head to where the smallest rank reaches
    .02.
    """
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    ranks = list(ranks) if ranks else ranks_to_show(dim)
    classes = [HeadClass(dim, rank, points, skip, generalised, values) for rank in ranks]
    baseline = floor_value(classes[0], 0)
    most = heads_needed(classes[0], 0.04 * baseline)
    require(
        most <= MOST_HEADS,
        required=f"a width at which at most {MOST_HEADS:.0e} heads are to be drawn",
        got=f"width {dim}, where rank {ranks[0]} needs more",
        remedy="a smaller width, or a higher rank",
    )
    grid = sorted({round(most ** (step / 300)) for step in range(301)})
    figure, axes = canvas(size=(8.4, 5.0))
    axis = axes[0, 0]
    colours, scale = colormaps["viridis"], Normalize(1, max(dim - 1, 2))
    shown = set(MARKED if dim == 64 else np.unique(np.geomspace(1, max(dim - 1, 1), 9).astype(int)).tolist())
    for heads_class in classes:
        floors = [floor_value(heads_class, heads) for heads in grid]
        strong = heads_class.rank in shown or len(classes) == 1
        axis.plot(
            [float(heads) for heads in grid],
            floors,
            color=colours(scale(heads_class.rank)),
            linewidth=1.8 if strong else 0.6,
            alpha=1.0 if strong else 0.6,
        )
        if strong:
            _label(axis, grid, floors, heads_class.rank, 0.06 * baseline)
    if points == 2 and not skip:
        for degree in (1, 3, 5):
            axis.axhline(plateau(dim, degree), color="grey", linestyle=":", linewidth=0.9)
            note = f"every harmonic up to degree {degree}"
            axis.text(float(grid[-1]), plateau(dim, degree), note, color="grey", fontsize=8, va="bottom", ha="right")
    axis.set_xscale("log")
    axis.set_yscale("log")
    axis.set_ylim(0.02 * baseline, 1.2 * baseline)
    axis.set_xlim(0.7, 3 * float(grid[-1]))
    shown_floors = [share * baseline for share in (1, 0.6, 0.4, 0.2, 0.1, 0.06, 0.04, 0.02)]
    axis.set_yticks(shown_floors, [f"{floor:.3g}" for floor in shown_floors])
    axis.set_yticks([], minor=True)
    axis.set_xlabel("heads H")
    axis.set_ylabel("least mean squared error of any H heads")
    axis.set_title(f"d = {dim}, N = {points}: error floor by head rank r")
    figure.colorbar(ScalarMappable(norm=scale, cmap=colours), ax=axis, label="rank r")
    return figure


def _label(axis: Any, grid: Sequence[int], floors: Sequence[float], rank: int, height: float) -> None:
    """Write r on its own curve where it passes a low height, where the curves are farthest apart."""
    below = [place for place, floor in enumerate(floors) if floor < height]
    if below and floors[below[0]] > 0:
        axis.text(float(grid[below[0]]), height, f"r={rank}", fontsize=8, ha="left", va="bottom")
