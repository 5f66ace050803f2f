"""Pictures of a series of audits: every measure as a map of layers by checkpoints, and the loss beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rankfall.drawing.audit import PANELS
from rankfall.drawing.canvas import COLOURS, canvas, whole_ticks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FIRST = dict(PANELS)
"""The measures to read first, and what they are called."""
COLUMNS = 3
TICKS = 8
LONGEST = 14
"""Letters of a label on an axis; of longer ones the end is shown, which tells checkpoints apart."""


def draw_series(
    depth: pd.DataFrame,
    measures: Sequence[str],
    *,
    heads: pd.DataFrame | None = None,
    losses: Mapping[str, float | None] | None = None,
    title: str,
) -> Figure:
    """A panel for each measure, for the median head where `heads` are given, and for the loss where there is one.

    `depth` has a row per model and layer, in the order of the series. Layers of models of different depth are laid
    over each other by relative depth, the nearest layer of each.
    """
    names = list(depth["model"].drop_duplicates())
    steps = {row["model"]: row["step"] for row in depth[["model", "step"]].to_dict("records")}
    panels: list[tuple[str, pd.DataFrame, str]] = [
        (FIRST.get(one, one.replace("_", " ")), depth, one) for one in measures
    ]
    if heads is not None and len(heads):
        last = heads.groupby("model")["layer"].transform("max").clip(lower=1)
        panels.append(
            ("median head, query/key effective rank", heads.assign(depth=heads["layer"] / last), "qk_effective_rank")
        )
    known = {name: value for name, value in (losses or {}).items() if value is not None}
    count = len(panels) + bool(known)
    columns = min(COLUMNS, count)
    figure, axes = canvas(-(-count // columns), columns, size=(4.6, 3.4))
    places = list(axes.flat)
    for panel, (label, table, column) in zip(places, panels, strict=False):
        _map(figure, panel, table, column, names, label)
    if known:
        panel = places[len(panels)]
        panel.plot(
            [names.index(name) for name in known],
            list(known.values()),
            "-o",
            color=COLOURS[1],
            markersize=4,
            label="loss",
        )
        panel.set_ylabel("loss on the text")
        panel.set_xlim(-0.5, len(names) - 0.5)
        panel.set_title("loss", fontsize=10)
    for panel in places[:count]:
        _name_checkpoints(panel, names, steps)
    for panel in places[count:]:
        panel.set_visible(False)
    figure.suptitle(title)
    return figure


def _map(figure: Figure, panel: Any, table: pd.DataFrame, column: str, names: Sequence[str], label: str) -> None:
    grid, alike = layer_grid(table, column, names)
    panel.grid(False)
    low, high = (float(end(grid)) for end in (np.nanmin, np.nanmax))
    image = panel.imshow(
        grid,
        aspect="auto",
        origin="lower",
        cmap="viridis",
        vmin=low,
        vmax=high if high > low else low + 1,
        extent=(-0.5, len(names) - 0.5, *_rows(table, grid, alike)),
        interpolation="nearest",
    )
    figure.colorbar(image, ax=panel)
    panel.set_ylabel("layer" if alike else "relative depth")
    panel.set_title(label, fontsize=10)
    if alike:
        whole_ticks(panel.yaxis)


def layer_grid(table: pd.DataFrame, column: str, names: Sequence[str]) -> tuple[Any, bool]:
    """(rows, models), and whether the rows are layers; if not they are relative depths, the nearest layer of each."""
    models = dict(list(table.groupby("model", sort=False)))
    layers = {tuple(mine["layer"]) for mine in models.values()}
    alike = len(layers) == 1
    count = max(len(one) for one in layers)
    grid = np.full((count, len(names)), np.nan)
    for name, mine in models.items():
        values, depths = mine[column].to_numpy(dtype=float), mine["depth"].to_numpy(dtype=float)
        wanted = (
            np.arange(count)
            if alike
            else [int(np.abs(depths - share).argmin()) for share in np.linspace(0, 1, count)]
        )
        grid[:, names.index(name)] = values[wanted]
    return grid, alike


def _rows(table: pd.DataFrame, grid: Any, alike: bool) -> tuple[float, float]:
    """Where the lowest row begins and the highest ends: at half a layer around those measured, or half a share."""
    if not alike:
        half = 0.5 / max(1, len(grid) - 1)
        return -half, 1 + half
    return float(table["layer"].min()) - 0.5, float(table["layer"].max()) + 0.5


def _name_checkpoints(panel: Any, names: Sequence[str], steps: Mapping[str, Any]) -> None:
    numbered = all(steps.get(name) is not None and steps[name] == steps[name] for name in names)
    labels = [f"{int(steps[name])}" if numbered else _short(name) for name in names]
    stride = -(-len(names) // TICKS)
    shown = list(range(0, len(names), stride))
    panel.set_xticks(
        shown,
        [labels[place] for place in shown],
        fontsize=8,
        rotation=0 if numbered else 30,
        ha="center" if numbered else "right",
    )
    panel.set_xlabel("step" if numbered else "checkpoint")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST else f"…{name[-LONGEST:]}"
