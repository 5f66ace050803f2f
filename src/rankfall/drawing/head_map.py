"""Heads of a model as a map: a column for each layer or module, a row for each head."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

import numpy as np

from rankfall.drawing.canvas import whole_ticks

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure


@final
@dataclass(frozen=True)
class HeadMap:
    """Heads with their `place` on the axis that `label` names."""

    heads: pd.DataFrame
    label: str

    @classmethod
    def of(cls, heads: pd.DataFrame) -> HeadMap:
        """The map of a table that has a row per head."""
        return cls(*placed(heads))

    @property
    def first(self) -> int:
        """The first place."""
        return int(self.heads["place"].min())

    @property
    def layers(self) -> int:
        """Columns."""
        return int(self.heads["place"].max()) - self.first + 1

    @property
    def rows(self) -> int:
        """The most heads of a layer."""
        return int(self.heads["head"].max()) + 1

    def size(self, width: float, height: float) -> tuple[float, float]:
        """Inches of a panel: at least these, more for many layers or heads."""
        return max(width, 0.22 * self.layers + 2), max(height, 0.22 * self.rows + 1.2)

    def draw(self, figure: Figure, panel: Any, values: Any, most: float, says: str, colours: str = "viridis") -> None:
        """One number of each head, from 0 to `most`."""
        grid = np.full((self.rows, self.layers), np.nan)
        grid[self.heads["head"], self.heads["place"] - self.first] = values.astype(float)
        edges = (self.first - 0.5, self.first + self.layers - 0.5, -0.5, self.rows - 0.5)
        panel.grid(False)
        image = panel.imshow(grid, aspect="auto", origin="lower", vmin=0, vmax=most, cmap=colours, extent=edges)
        figure.colorbar(image, ax=panel, label=says)
        panel.set_xlabel(self.label)
        panel.set_ylabel("head")
        whole_ticks(panel.xaxis, panel.yaxis)


def placed(heads: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """Heads with their `place` on an axis and its label: the layer; where a layer number stands for several modules,
    as in a model of two stacks, the order in which they run."""
    if "module" not in heads:
        return heads.assign(place=heads["layer"]), "layer"
    modules = heads[["layer", "module"]].drop_duplicates()
    if modules["layer"].is_unique:
        return heads.assign(place=heads["layer"]), "layer"
    order = {pair: at for at, pair in enumerate(modules.itertuples(index=False, name=None), 1)}
    pairs = zip(heads["layer"], heads["module"], strict=True)
    return heads.assign(place=[order[pair] for pair in pairs]), "attention module, in order"
