"""Error against rank, one panel per setting: published points, ours on the repeated sample, ours on fresh data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]


def rank_curves(
    records: Sequence[Record],
    panel: Callable[[Record], str],
    line: Callable[[Record], str],
    width: Callable[[Record], int],
) -> Figure:
    """`panel` and `line` name where a record belongs; the axis is rank over width, so that scales can be laid over.

    Crosses: published. Filled, solid: training loss on the repeated sample. Hollow, dashed: fresh data throughout.
    """
    panels = list(dict.fromkeys(panel(record) for record in records))
    lines = list(dict.fromkeys(line(record) for record in records))
    figure, axes = canvas(1, len(panels), size=(4.8, 4.2), sharey=True)
    for ax, name in zip(axes[0], panels, strict=True):
        for number, label in enumerate(lines):
            own = [record for record in records if panel(record) == name and line(record) == label]
            own.sort(key=lambda record: record["rank"] / width(record))
            _draw(ax, own, width, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], label)
        ax.set(title=name, xlabel="rank / width", xscale="log", yscale="log")
        ax.set_xticks([1, 1 / 4, 1 / 16, 1 / 64], ["1", "1/4", "1/16", "1/64"])
        ax.minorticks_off()
    axes[0, 0].set_ylabel("squared error")
    named = axes[0, 0].get_legend_handles_labels()[0]
    # Below the panels: inside, it would lie on points at one scale or another.
    figure.legend(handles=[*named, *_key()], fontsize=8, loc="outside lower center", ncols=min(3, len(panels)))
    drawn: Figure = figure
    return drawn


def _draw(
    ax: Any, records: Sequence[Record], width: Callable[[Record], int], colour: str, marker: str, label: str
) -> None:
    styles: tuple[tuple[str, dict[str, Any]], ...] = (
        ("ours", {"marker": marker, "linestyle": "-", "markersize": 5}),
        ("trained_fresh", {"marker": marker, "linestyle": "--", "markersize": 5, "markerfacecolor": "white"}),
        ("published", {"marker": "x", "linestyle": "none", "markersize": 8, "alpha": 0.8}),
    )
    ax.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
    for column, style in styles:
        found = [(r["rank"] / width(r), r[column]) for r in records if r.get(column) is not None]
        if found:
            ax.plot(*zip(*found, strict=True), color=colour, **style)


def _key() -> list[Any]:
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"color": "#555555", "marker": "o", "markersize": 5}
    cross = grey | {"marker": "x", "markersize": 8}
    return [
        Line2D([], [], linestyle="-", label="ours, repeated sample (training loss)", **grey),
        Line2D([], [], linestyle="--", markerfacecolor="white", label="ours, fresh data throughout", **grey),
        Line2D([], [], linestyle="none", label="published (repeated sample)", **cross),
    ]
