"""Loss of language models against the rank of their heads: a panel per budget, a line per H r over the width or per
number of heads."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.training.text.comparison import text_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]

ABREAST = 3
"""Most panels beside each other."""


def loss_by_rank(records: Sequence[Record]) -> Figure:
    """Nats per byte of held-out text, with the margin over seeds where some shape has several."""
    drawn = [record for record in records if record["nats_per_byte"] is not None]
    panels: dict[str, list[Record]] = {}
    for record in drawn:
        panels.setdefault(_panel(record, drawn), []).append(record)
    labels = {id(record): line(record) for own in panels.values() for line in [_lines_of(own)] for record in own}
    lines = list(dict.fromkeys(labels[id(record)] for record in sorted(drawn, key=_order)))
    columns = min(ABREAST, max(1, len(panels)))
    figure, axes = canvas(max(1, math.ceil(len(panels) / columns)), columns, size=(4.8, 4.2), sharey=False)
    for ax in axes.flat[len(panels) :]:
        ax.remove()
    for ax, (name, shown) in zip(axes.flat, panels.items(), strict=False):
        for number, label in enumerate(lines):
            own = sorted((one for one in shown if labels[id(one)] == label), key=lambda record: record["rank"])
            if own:
                loss_line(ax, number, label, own)
        ax.set(title=name)
        rank_axis(ax, shown)
        # below the panel: inside it would lie over points, of which many may share a rank
        ax.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.17))
    return figure


def loss_line(ax: Any, number: int, label: str, records: Sequence[Record], joined: bool = True) -> None:
    """Losses by rank in the style of that number, with the margins that seeds give; `joined` by a line."""
    ax.errorbar(
        [record["rank"] for record in records],
        [record["nats_per_byte"] for record in records],
        yerr=[record["nats_per_byte_margin"] or 0.0 for record in records],
        color=COLOURS[number % len(COLOURS)],
        marker=MARKERS[number % len(MARKERS)],
        linestyle="-" if joined else "none",
        capsize=3,
        label=label,
    )
    ax.set_ylabel("nats per byte, held-out text")


def rank_axis(ax: Any, records: Sequence[Record]) -> None:
    """Ranks as they were trained, on a logarithmic axis."""
    ranks = sorted({record["rank"] for record in records})
    ax.set(xlabel="query/key rank of a head", xscale="log")
    ax.set_xticks(ranks, [str(rank) for rank in ranks])
    ax.minorticks_off()


def _panel(record: Record, records: Sequence[Record]) -> str:
    of = record["budget"] if record["budget"] != "none" else f"{record['steps']:,} steps"
    variant = f"\n{record['variant']}" if record["variant"] else ""
    # where the depth was solved for, models of one panel differ in it
    deep = "" if of.endswith(" by layers") else f", {record['layers']} layer{'s' * (record['layers'] != 1)}"
    text = f"{text_name(record, records)}\n".lstrip("\n")
    return f"{text}width {record['width']}{deep}\n{of}{variant}"


def times_width(record: Record) -> Fraction:
    """How many times the width the ranks of all heads are together."""
    return Fraction(record["heads"] * record["rank"], record["width"])


def _order(record: Record) -> tuple[Any, ...]:
    return times_width(record), record["heads"], record["value_rank"], record["key_heads"]


def _lines_of(records: Sequence[Record]) -> Callable[[Record], str]:
    """What models of one line of a panel share: H r over the width, or the number of heads where that makes fewer
    lines; and the value width, the heads with keys or the feed-forward where one line and rank has several."""
    shared = min((_total, _heads), key=lambda name: len({name(record) for record in records}))
    told: list[str] = []
    for field in ("value_rank", "key_heads", "feed_forward"):
        by_place: dict[tuple[Any, ...], set[int]] = {}
        for record in records:
            place = (shared(record), record["rank"], *(record[name] for name in told))
            by_place.setdefault(place, set()).add(record[field])
        if any(len(values) > 1 for values in by_place.values()):
            told.append(field)
    return lambda record: ", ".join([shared(record), *(f"{name.replace('_', ' ')} {record[name]}" for name in told)])


def _total(record: Record) -> str:
    times = times_width(record)
    return "H r = d" if times == 1 else f"H r = {times} d"


def _heads(record: Record) -> str:
    return f"{record['heads']} head{'s' * (record['heads'] != 1)}"
