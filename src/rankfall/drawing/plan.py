"""The plan as one picture: language models and trained matches by rank, the bound, the time of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas, heading

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]


def draw_plan(rows: Rows, title: str, directions: int) -> Figure:
    """A panel for each column that has numbers, a line for each family of rows; the recommended row has a ring."""
    columns = {
        "text_excess": ("language models:\nloss over the best rank, %", 100.0),
        "trained_error": (f"trained error in matches\nof {directions} directions", 1.0),
        "mse_lower_bound_with_skip": ("lower bound, one bare layer\nwith a skip connection", 1.0),
        "step_seconds": ("training step\nof one sequence, seconds", 1.0),
    }
    panels = [name for name in columns if any(row.get(name) is not None for row in rows)]
    figure, axes = canvas(1, len(panels), size=(4.6, 3.6))
    lines = families(rows)
    for column, axis in zip(panels, axes.flat, strict=True):
        label, unit = columns[column]
        for (name, members), colour, marker in zip(lines.items(), COLOURS, MARKERS, strict=False):
            known = [row for row in members if row.get(column) is not None]
            ranks = [row["rank"] for row in known]
            axis.plot(
                ranks, [unit * row[column] for row in known],
                color=colour, marker=marker, ms=4, alpha=0.8, label=f"equal {name}",
            )  # fmt: skip
            if f"{column}_low" in rows[0]:
                low, high = ([unit * row[f"{column}_{end}"] for row in known] for end in ("low", "high"))
                axis.fill_between(ranks, low, high, color=colour, alpha=0.15, linewidth=0)
        for row in rows:
            if row.get("recommended") and row.get(column) is not None:
                ring: dict[str, Any] = {"marker": "o", "ms": 11, "mfc": "none", "color": "black", "linestyle": "none"}
                axis.plot([row["rank"]], [unit * row[column]], **ring, label="recommended")
        axis.set_ylabel(label)
        _finish(axis, rows)
    axes[0, 0].annotate(
        f"usual: H={rows[0]['heads']}, r={rows[0]['rank']}",
        (rows[0]["rank"], axes[0, 0].get_ylim()[1]),
        xytext=(3, -9),
        textcoords="offset points",
        size=8,
    )
    entries = {one.get_label(): one for axis in axes.flat for one in axis.get_legend_handles_labels()[0]}
    figure.legend(entries.values(), entries, loc="outside lower center", ncols=len(entries), fontsize=8)
    heading(figure, title)
    return figure


def _finish(axis: Any, rows: Rows) -> None:
    """The ranks of all rows, and a line at that of the usual choice."""
    ranks = sorted({row["rank"] for row in rows})
    axis.axvline(rows[0]["rank"], color="grey", linewidth=0.8, linestyle=":")
    axis.set(xscale="log", xlabel="rank r of a head", xlim=(ranks[0] / 1.15, ranks[-1] * 1.15))
    top = 1.05 * axis.get_ylim()[1]
    axis.set_ylim(-0.03 * top, top)
    axis.set_xticks(ranks, [str(rank) for rank in ranks], fontsize=8, rotation=45)
    axis.minorticks_off()


def families(rows: Rows) -> dict[str, list[Mapping[str, Any]]]:
    """Rows of equal parameters and of equal FLOPs by rank; one family where they are the same rows."""
    found = {
        name: sorted((row for row in rows if name in row["equal"]), key=lambda row: (row["rank"], row["heads"]))
        for name in ("parameters", "flops")
    }
    if found["parameters"] == found["flops"]:
        return {"parameters and FLOPs": found["parameters"]}
    return {"parameters": found["parameters"], "FLOPs": found["flops"]}
