"""Language models by head rank: loss on held-out text and what rank costs, token rank, the rank that heads need."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from rankfall.drawing.canvas import COLOURS, MARKERS, canvas
from rankfall.drawing.loss_by_rank import loss_line, rank_axis, times_width

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Record = Mapping[str, Any]
Panel = Callable[[Any, Mapping[tuple[Any, ...], Sequence[Record]]], None]
"""Draws on an axis the records of each setting."""
Outside = Literal["outside upper center", "outside lower center"]
COLUMNS = 3
SOLVED = {
    "parameters": "equal parameters",
    "flops": "equal operations",
    "step_seconds": "equal time",
    "none": "nothing solved",
}
AMOUNTS: dict[str, Callable[[float], str]] = {
    "parameters": lambda count: (
        f"{count / 1e6:.3g} million parameters each" if count >= 1e6 else f"{count:,.0f} parameters each"
    ),
    "flops": lambda count: f"{count:.3g} operations each",
    "step_seconds": lambda seconds: f"{1000 * seconds:.3g} ms a step each",
}
STROKES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 4)))
MOST_INSIDE = 5
"""Lines whose legend finds room among them; that of more stands beside all panels."""
FEWEST_AT_FIXED_HEADS = 3
"""Ranks with one number of heads that make a line of their own; heads that share the width give one each."""


def draw_text_rank(records: Sequence[Record]) -> Figure:
    """What rank costs where heads share the width; what the audits found there; then a panel of losses for each text,
    width and budget, a line for each H r / d."""
    drawn = [record for record in records if record["nats_per_byte"] is not None]
    panels = list(dict.fromkeys(_setting(record) for record in sorted(drawn, key=_setting_order)))
    shared = {setting: own for setting in panels if (own := _sharing(drawn, setting))}
    every = [record for own in shared.values() for record in own]
    above: list[Panel] = [_costs] if shared else []
    audits: list[Panel] = [
        partial(_audits, name)
        for name in ("token_rank_last", "head_rank_needed")
        if any(one.get(name) is not None for one in every)
    ]
    count = len(above) + len(audits) + len(panels)
    columns = min(COLUMNS, count)
    figure, axes = canvas(-(-count // columns), columns, size=(4.9, 3.9))
    flat = list(axes.flat)
    for ax, draw in zip(flat, [*above, *audits], strict=False):
        draw(ax, shared)
    for ax, setting in zip(flat[len(above) + len(audits) :], panels, strict=False):
        _losses(ax, setting, [record for record in drawn if _setting(record) == setting])
    for ax in flat[count:]:
        ax.remove()
    _legend_outside(figure, flat[0], len(shared), "outside upper center")
    return figure


def draw_costs(records: Sequence[Record]) -> Figure:
    """What rank costs where heads share the width, and beside it the losses of the setting with most shapes."""
    drawn = [record for record in records if record["nats_per_byte"] is not None]
    settings = [_setting(record) for record in sorted(drawn, key=_setting_order)]
    most = max(dict.fromkeys(settings), key=settings.count)
    figure, axes = canvas(1, 2, size=(5.2, 4.4))
    left, right = axes.flat
    _costs(left, {setting: own for setting in dict.fromkeys(settings) if (own := _sharing(drawn, setting))})
    _losses(right, most, [record for record in drawn if _setting(record) == most])
    _legend_outside(figure, left, len(left.get_legend_handles_labels()[1]), "outside lower center")
    return figure


def _legend_outside(figure: Figure, costs: Any, lines: int, where: Outside) -> None:
    """The legend of the panel of costs, where it has too many lines to stand among them."""
    if lines > MOST_INSIDE:
        figure.legend(*costs.get_legend_handles_labels(), fontsize=8, ncol=COLUMNS, loc=where, handlelength=3.5)


def _sharing(records: Sequence[Record], setting: tuple[Any, ...]) -> list[Record]:
    """The records of a setting whose heads share the width, H r = H u = d, by rank, where there are several ranks."""
    own = [
        record
        for record in records
        if _setting(record) == setting and times_width(record) == 1 and record["value_rank"] == record["rank"]
    ]
    return sorted(own, key=lambda record: record["rank"]) if len({record["rank"] for record in own}) > 1 else []


def lines_of(records: Sequence[Record]) -> dict[str, list[Record]]:
    """The lines of one panel: heads whose ranks add up to the same share of the width, and heads fixed in number."""
    lines: dict[str, list[Record]] = {}
    for times in sorted({times_width(record) for record in records}):
        own = [record for record in records if times_width(record) == times]
        if len({record["rank"] for record in own}) > 1:
            lines["H r = d" if times == 1 else f"H r = {times} d"] = own
    for heads in sorted({record["heads"] for record in records}):
        own = [record for record in records if record["heads"] == heads]
        if len({record["rank"] for record in own}) >= FEWEST_AT_FIXED_HEADS:
            lines[f"H = {heads}, r free"] = own
    held = {id(record) for own in lines.values() for record in own}
    rest = [record for record in records if id(record) not in held]
    if rest:
        lines["others"] = rest
    return {name: sorted(own, key=lambda record: record["rank"]) for name, own in lines.items()}


def _losses(ax: Any, setting: tuple[Any, ...], records: Sequence[Record]) -> None:
    for number, (label, own) in enumerate(lines_of(records).items()):
        loss_line(ax, number, label, own, joined=label != "others")
    domain, width, _, kind, budget, variant = setting
    ax.set(title=f"{domain}, d = {width}, {SOLVED.get(kind, kind)}\n{variant or _amount(budget)}")
    rank_axis(ax, records)
    ax.legend(fontsize=7)


def _costs(ax: Any, shared: Mapping[tuple[Any, ...], Sequence[Record]]) -> None:
    """Loss above that of the best rank, per cent, a line for each setting."""
    styles = _styles(shared)
    for setting, own in shared.items():
        least = min(record["nats_per_byte"] for record in own)
        ax.errorbar(
            [record["rank"] for record in own],
            [100 * (record["nats_per_byte"] / least - 1) for record in own],
            yerr=[100 * (record["nats_per_byte_margin"] or 0.0) / least for record in own],
            capsize=3,
            label=_label(setting),
            **styles[setting],
        )
    ax.axhline(0.0, color="0.6", linewidth=0.8)
    ax.set(title="what head rank costs, heads sharing the width\n(H r = d)", ylabel="loss above the best rank, %")
    rank_axis(ax, [record for own in shared.values() for record in own])
    if len(shared) <= MOST_INSIDE:
        ax.legend(fontsize=7)


def _audits(name: str, ax: Any, shared: Mapping[tuple[Any, ...], Sequence[Record]]) -> None:
    """One line for each setting, in the colours of the panel of costs, whose legend would hide lines here."""
    shown: list[Record] = []
    styles = _styles(shared)
    for setting, own in shared.items():
        known = [record for record in own if record.get(name) is not None]
        if known:
            ax.plot(
                [record["rank"] for record in known],
                [record[name] for record in known],
                label=_label(setting),
                **styles[setting],
            )
            shown += known
    if name == "head_rank_needed":
        ranks = sorted({record["rank"] for record in shown})
        ax.plot(ranks, ranks, color="0.6", linestyle=":", label="all that a head has")
        ax.set(
            title="rank that the median head needs (dotted: all\nit has; its attention within 0.01 nats a row)",
            yscale="log",
        )
        ax.set_yticks(ranks, [str(rank) for rank in ranks])
        ax.set_ylabel("directions of a head's scores")
    else:
        ax.set(title="token rank after the last layer\n(tokens of length one)", ylabel="effective rank of the tokens")
    rank_axis(ax, shown)


def _styles(settings: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], dict[str, Any]]:
    """A colour for each text and width, a marker and stroke for each setting of these."""
    groups: dict[tuple[Any, ...], list[tuple[Any, ...]]] = {}
    for setting in settings:
        groups.setdefault(setting[:2], []).append(setting)
    return {
        setting: {
            "color": COLOURS[number % len(COLOURS)],
            "marker": MARKERS[(number + place) % len(MARKERS)],
            "linestyle": STROKES[place % len(STROKES)],
        }
        for number, group in enumerate(groups.values())
        for place, setting in enumerate(group)
    }


def _label(setting: tuple[Any, ...]) -> str:
    domain, width, _, kind, _, variant = setting
    rest = [SOLVED.get(kind, kind)] * (kind != "parameters") + [variant] * bool(variant)
    return ", ".join([f"{domain}, d = {width}", *rest])


def _setting(record: Record) -> tuple[Any, ...]:
    budget = str(record["budget"])
    return record["domain"], record["width"], record["layers"], budget.partition("=")[0], budget, record["variant"]


def _setting_order(record: Record) -> tuple[Any, ...]:
    domain, width, layers, kind, budget, variant = _setting(record)
    return list(SOLVED).index(kind) if kind in SOLVED else len(SOLVED), str(domain), width, layers, budget, variant


def _amount(budget: str) -> str:
    """`parameters=10000000 by feed_forward` in short."""
    name, _, rest = budget.partition("=")
    if name not in AMOUNTS:
        return "no budget" if name == "none" else budget
    return AMOUNTS[name](float(rest.partition(" ")[0]))
