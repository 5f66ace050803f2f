"""Loss of language models against the rank of their heads: a panel per budget, a line per H r over the width or per
number of heads."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.training.text.comparison import text_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]


def loss_by_rank(records: Sequence[Record]) -> Figure:
    """Nats per byte of held-out text, with the margin over seeds where some shape has several."""
    drawn = [record for record in records if record["nats_per_byte"] is not None]
    titles = {id(record): _panel(record, drawn) for record in drawn}
    panels = list(dict.fromkeys(titles.values()))
    line = _lines_of(drawn, titles)
    lines = list(dict.fromkeys(line(record) for record in sorted(drawn, key=_order)))
    figure, axes = canvas(1, max(1, len(panels)), size=(4.8, 4.2), sharey=False)
    for ax, name in zip(axes[0], panels, strict=False):
        for number, label in enumerate(lines):
            own = [record for record in drawn if titles[id(record)] == name and line(record) == label]
            own.sort(key=lambda record: record["rank"])
            if not own:
                continue
            losses = [record["nats_per_byte"] for record in own]
            errors = [record["nats_per_byte_margin"] or 0.0 for record in own]
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            ranks = [record["rank"] for record in own]
            ax.errorbar(ranks, losses, yerr=errors, color=colour, marker=marker, capsize=3, label=label)
        ranks = sorted({record["rank"] for record in drawn if titles[id(record)] == name})
        ax.set(title=name, xlabel="query/key rank of a head", xscale="log", ylabel="nats per byte, held-out text")
        ax.set_xticks(ranks, [str(rank) for rank in ranks])
        ax.minorticks_off()
        ax.legend(fontsize=8)
    return figure


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


def _lines_of(records: Sequence[Record], titles: Mapping[int, str]) -> Callable[[Record], str]:
    """What models of one line share: H r over the width, or the number of heads where that makes fewer lines; and
    the value width, the heads with keys or the feed-forward where models of one line and rank differ in them."""
    shared = min((_total, _heads), key=lambda name: len({name(record) for record in records}))
    told: list[str] = []
    for field in ("value_rank", "key_heads", "feed_forward"):
        by_place: dict[tuple[Any, ...], set[int]] = {}
        for record in records:
            told_by = (record[field] for field in told)
            place = (titles[id(record)], shared(record), record["rank"], *told_by)
            by_place.setdefault(place, set()).add(record[field])
        if any(len(values) > 1 for values in by_place.values()):
            told.append(field)
    return lambda record: ", ".join(
        [shared(record), *(f"{field.replace('_', ' ')} {record[field]}" for field in told)]
    )


def _total(record: Record) -> str:
    times = times_width(record)
    return "H r = d" if times == 1 else f"H r = {times} d"


def _heads(record: Record) -> str:
    return f"{record['heads']} head{'s' * (record['heads'] != 1)}"
