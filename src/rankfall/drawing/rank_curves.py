"""Error against rank, one panel per setting: published points, ours on the repeated sample, ours on fresh data."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

MOST_FRACTIONS = 8
FEWEST_TICKS = 2
MARGIN = 1.25
"""Room beside the first and the last rank, as a factor."""
ZERO = 1.0
"""What outputting zero costs in every task: above it, a model is worse than no answer."""

STYLES: dict[str, tuple[str, dict[str, Any]]] = {
    "ours": ("ours, repeated sample (training loss)", {"linestyle": "-", "markersize": 5}),
    "same_weights_fresh": (
        "the same weights on fresh data", {"linestyle": ":", "markersize": 4, "alpha": 0.6},
    ),
    "trained_fresh": (
        "ours, fresh data throughout", {"linestyle": "--", "markersize": 5, "markerfacecolor": "white"},
    ),
    "published": (
        "published (repeated sample)", {"linestyle": "none", "marker": "x", "markersize": 8, "alpha": 0.8},
    ),
}  # fmt: skip
"""What is drawn of a record, by column: its meaning and its look."""
ZERO_MEANS = "outputting zero"


def rank_curves(
    records: Sequence[Record],
    panel: Callable[[Record], str],
    line: Callable[[Record], str],
    width: Callable[[Record], int],
    columns: int | None = None,
) -> Figure:
    """`panel` and `line` name where a record belongs; the axis is rank over width, so that scales can be laid over.

    Crosses: published. Filled, solid: training loss on the repeated sample; dotted: the same weights on fresh data.
    Hollow, dashed: fresh data throughout. The legend names those of the four that there are. A curve has a gap where
    a record says None. Panels stand in one row, or in rows of `columns`, which must divide their number.
    """
    panels = list(dict.fromkeys(panel(record) for record in records))
    lines = list(dict.fromkeys(line(record) for record in records))
    beside = columns or len(panels)
    figure, axes = canvas(len(panels) // beside, beside, size=(4.8, 4.2), sharey=True)
    for ax, name in zip(axes.flat, panels, strict=True):
        for number, label in enumerate(lines):
            own = [record for record in records if panel(record) == name and line(record) == label]
            own.sort(key=lambda record: record["rank"] / width(record))
            _draw(ax, own, width, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)], label)
        ax.axhline(ZERO, color="#999999", linewidth=1, label=f"_{ZERO_MEANS}")
        ax.set(title=name, xlabel="rank / width", xscale="log", yscale="log")
    ratios = sorted({Fraction(record["rank"], width(record)) for record in records})
    for ax in axes.flat:
        ax.set_xlim(float(ratios[0]) / MARGIN, float(ratios[-1]) * MARGIN)
        _ticks(ax, ratios)
    for ax in axes[:, 0]:
        ax.set_ylabel("squared error")
    named = axes[0, 0].get_legend_handles_labels()[0]
    # Below the panels: inside, it would lie on points at one scale or another.
    figure.legend(handles=[*named, *_key(records)], fontsize=8, loc="outside lower center", ncols=min(3, len(panels)))
    return figure


def _draw(
    ax: Any, records: Sequence[Record], width: Callable[[Record], int], colour: str, marker: str, label: str
) -> None:
    ax.plot([], [], color=colour, marker=marker, linestyle="none", label=label)
    for column, (meaning, style) in STYLES.items():
        found = [(r["rank"] / width(r), r[column]) for r in records if column in r]
        if style["linestyle"] == "none":
            found = [point for point in found if point[1] is not None]
        if any(error is not None for _, error in found):
            ratios, errors = zip(*found, strict=True)
            named = {"gid": label, "label": f"_{meaning}"}
            gaps = [math.nan if error is None else error for error in errors]
            ax.plot(ratios, gaps, **({"color": colour, "marker": marker} | style | named))


def _key(records: Sequence[Record]) -> list[Any]:
    from matplotlib.lines import Line2D

    grey: dict[str, Any] = {"color": "#555555", "marker": "o"}
    return [
        Line2D([], [], label=meaning, **(grey | style))
        for column, (meaning, style) in STYLES.items()
        if any(record.get(column) is not None for record in records)
    ] + [Line2D([], [], label=ZERO_MEANS, color="#999999", linewidth=1)]


def _ticks(ax: Any, ratios: Sequence[Fraction]) -> None:
    """Ranks over width as fractions, those that were run; errors at 1, 2 and 5, or evenly where few of them lie.

    Errors often span much less than a decade, where no power of ten, nor 2 or 5, need lie in sight.
    """
    from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

    stride = -(-len(ratios) // MOST_FRACTIONS)
    shown = ratios[::-1][::stride]
    ax.set_xticks([float(ratio) for ratio in shown], [str(ratio) for ratio in shown])
    low, high = ax.get_ylim()
    nice = LogLocator(subs=(1, 2, 5))
    seen = [tick for tick in nice.tick_values(low, high) if low <= tick <= high]
    ax.yaxis.set_major_locator(nice if len(seen) >= FEWEST_TICKS else MaxNLocator(5))
    ax.yaxis.set_major_formatter("{x:g}")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
