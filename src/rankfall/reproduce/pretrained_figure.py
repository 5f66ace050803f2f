"""The picture of ablated real models: one row per subject; parts on the left, masks and temperatures on the right."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FLOOR = 1e-17
LINES = {"raw": "-", "matched": ":"}


def draw_ablations(blocks: pd.DataFrame, variations: pd.DataFrame) -> Figure:
    """Relative mu by layer, on a logarithmic scale, clipped at what float64 resolves."""
    from rankfall.drawing.canvas import canvas

    subjects: list[tuple[str, str]] = sorted(set(zip(blocks["model"], blocks["weights"], strict=True)))
    figure, axes = canvas(len(subjects), 3, size=(4.4, 3.0))
    for row, (model, weights) in enumerate(subjects):
        mine = blocks[(blocks["model"] == model) & (blocks["weights"] == weights)]
        changed = variations[(variations["model"] == model) & (variations["weights"] == weights)]
        changed = changed[changed["variant"] == "attention"]
        _parts(axes[row, 0], mine)
        _lines(axes[row, 1], changed[changed["temperature"] == 1.0], "mask")
        complete = changed[changed["mask"] == "complete"]
        _lines(axes[row, 2], complete, "temperature")
        for axis, title in zip(
            axes[row], ("parts of the block", "attention, other masks", "temperatures"), strict=True
        ):
            axis.set_title(f"{model}, {weights}: {title}", fontsize=9)
            axis.set_yscale("log")
            axis.set_xlabel("layer")
        axes[row, 0].set_ylabel(r"relative $\mu$")
    # In the second row, where curves leave room; the colours are the same everywhere.
    for axis, title in zip(
        axes[min(1, len(subjects) - 1)], ("dotted: scale-matched", "mask", "temperature"), strict=True
    ):
        axis.legend(fontsize=7, title=title, title_fontsize=7, loc="center right")
    found: Figure = figure
    return found


def _parts(axis: Any, rows: pd.DataFrame) -> None:
    from rankfall.drawing.canvas import COLOURS

    for number, variant in enumerate(rows["variant"].drop_duplicates()):
        for scaling, line in LINES.items():
            curve = rows[(rows["variant"] == variant) & (rows["scaling"] == scaling)].sort_values("layer")
            if len(curve):
                values = curve["relative_mu"].clip(lower=FLOOR)
                label = variant if scaling == "raw" else None
                axis.plot(curve["layer"], values, line, color=COLOURS[number], label=label)


def _lines(axis: Any, rows: pd.DataFrame, column: str) -> None:
    from rankfall.drawing.canvas import COLOURS

    for number, (value, curve) in enumerate(rows.groupby(column)):
        curve = curve.sort_values("layer")
        label = str(Fraction(value)) if isinstance(value, float) else str(value)
        axis.plot(curve["layer"], curve["relative_mu"].clip(lower=FLOOR), color=COLOURS[number], label=label)
