"""The picture of ablated real models: one row per subject; parts, masks, temperatures."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

FLOOR = 1e-17
FULL_FLOOR = 1e-3
MASKED = ("attention", "attention + norm", "full model")
PANELS = ("parts of the block", *(f"{variant}, four masks" for variant in MASKED), "temperatures, complete mask")
LINES = {"raw": "-", "matched": ":"}


def draw_ablations(blocks: pd.DataFrame, variations: pd.DataFrame) -> Figure:
    """Relative mu by layer, on a logarithmic scale, clipped at what float64 resolves."""
    from rankfall.drawing.canvas import canvas

    subjects: list[tuple[str, str]] = sorted(set(zip(blocks["model"], blocks["weights"], strict=True)))
    figure, axes = canvas(len(subjects), len(PANELS), size=(4.0, 3.0))
    for row, (model, weights) in enumerate(subjects):
        mine = blocks[(blocks["model"] == model) & (blocks["weights"] == weights)]
        changed = variations[(variations["model"] == model) & (variations["weights"] == weights)]
        plain = changed[changed["temperature"] == 1.0]
        alone = changed[changed["variant"] == "attention"]
        _parts(axes[row, 0], mine)
        for column, variant in enumerate(MASKED, 1):
            _lines(axes[row, column], plain[plain["variant"] == variant], "mask")
        _lines(axes[row, -1], alone[alone["mask"] == "complete"], "temperature")
        for axis, title in zip(axes[row], PANELS, strict=True):
            axis.set_title(f"{model}, {weights}: {title}", fontsize=9)
            axis.set_yscale("log")
            axis.set_xlabel("layer")
        # Nothing falls far here: one scale for all, so that small wiggles do not look like a fall.
        axes[row, 3].set_ylim(FULL_FLOOR, 1.5)
        axes[row, 0].set_ylabel(r"relative $\mu$")
    # In the second row, where curves leave room; the colours are the same everywhere.
    legends = {0: "dotted: scale-matched", 1: "mask", len(PANELS) - 1: "temperature"}
    for column, title in legends.items():
        axis = axes[min(1, len(subjects) - 1), column]
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
