"""Loss of language models against the rank of their heads: a panel per budget, a line per H r over the width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]


def loss_by_rank(records: Sequence[Record]) -> Figure:
    """Nats per byte of held-out text, with the interval over seeds where there is one."""
    drawn = [record for record in records if record["nats_per_byte"] is not None]
    panels = list(dict.fromkeys(_panel(record) for record in drawn))
    lines = list(dict.fromkeys(_line(record) for record in sorted(drawn, key=_times_width)))
    figure, axes = canvas(1, max(1, len(panels)), size=(4.8, 4.2), sharey=False)
    for ax, name in zip(axes[0], panels, strict=False):
        for number, label in enumerate(lines):
            own = [record for record in drawn if _panel(record) == name and _line(record) == label]
            own.sort(key=lambda record: record["rank"])
            if not own:
                continue
            losses = [record["nats_per_byte"] for record in own]
            errors = [
                [loss - (record["nats_per_byte_low"] or loss) for loss, record in zip(losses, own, strict=True)],
                [(record["nats_per_byte_high"] or loss) - loss for loss, record in zip(losses, own, strict=True)],
            ]
            colour, marker = COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]
            ranks = [record["rank"] for record in own]
            ax.errorbar(ranks, losses, yerr=errors, color=colour, marker=marker, capsize=3, label=label)
        ranks = sorted({record["rank"] for record in drawn if _panel(record) == name})
        ax.set(title=name, xlabel="query/key rank of a head", xscale="log", ylabel="nats per byte, held-out text")
        ax.set_xticks(ranks, [str(rank) for rank in ranks])
        ax.minorticks_off()
        ax.legend(fontsize=8)
    return figure


def _panel(record: Record) -> str:
    of = record["budget"] if record["budget"] != "none" else f"{record['steps']:,} steps"
    variant = f"\n{record['variant']}" if record["variant"] else ""
    # where the depth was solved for, models of one panel differ in it
    deep = "" if of.endswith(" by layers") else f", {record['layers']} layer{'s' * (record['layers'] != 1)}"
    return f"width {record['width']}{deep}\n{of}{variant}"


def _times_width(record: Record) -> Fraction:
    return Fraction(record["heads"] * record["rank"], record["width"])


def _line(record: Record) -> str:
    times = _times_width(record)
    return "H r = d" if times == 1 else f"H r = {times} d"
