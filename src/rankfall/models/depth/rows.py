"""Measurements of several texts at one place as one row: means, intervals, sinks, with and without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, final

import numpy as np
import torch

from rankfall.measures.views.three import VIEWS
from rankfall.models.depth.bootstrap import bootstrap
from rankfall.models.depth.capture import Part, Place
from rankfall.models.depth.sinks import Sink

Values = Mapping[str, Mapping[str, float]]
"""By view (raw, unit, centred), then by measure."""

Intervals = Mapping[str, Mapping[str, tuple[float, float]]]

HOST = torch.device("cpu")

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Measured:
    """One text at one place. `without` leaves the sinks out; it is None when there are none."""

    place: Place
    text: int
    values: Values
    without: Values | None = None
    sinks: tuple[Sink, ...] = ()


@final
@dataclass(frozen=True)
class DepthRow:
    """All texts at one place. `interval` holds (low, high) of the mean over texts, when there are several."""

    layer: int
    part: Part
    values: Values
    texts: int
    interval: Intervals | None = None
    without_sinks: Values | None = None
    sinks: tuple[Sink, ...] = ()
    per_text: tuple[Measured, ...] = field(default=(), repr=False)

    def record(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        record: dict[str, Any] = {"layer": self.layer, "part": self.part}
        record |= {view: dict(self.values[view]) for view in VIEWS}
        record["interval"] = self.interval
        record["sinks"] = [asdict(sink) for sink in self.sinks]
        record["without_sinks"] = self.without_sinks
        return record


def gather(measured: Sequence[Measured], seed: int = 0, device: torch.device = HOST) -> list[DepthRow]:
    """One row per place, in the order of depth. Intervals over texts are drawn on `device`, all of them at once."""
    order = {"attention_output": 0, "after_attention": 1, "mlp_output": 2, "before_final_norm": 3, "boundary": 4}
    places = sorted({one.place for one in measured}, key=lambda place: (place.layer, order[place.part]))
    by_place: dict[Place, list[Measured]] = {place: [] for place in places}
    for one in measured:
        by_place[one.place].append(one)
    groups = [sorted(group, key=lambda one: one.text) for group in by_place.values()]
    intervals = _intervals([[one.values for one in group] for group in groups], seed, device)
    return [_row(*one) for one in zip(places, groups, intervals, strict=True)]


def _row(place: Place, group: list[Measured], interval: Intervals | None) -> DepthRow:
    any_sink = any(one.without is not None for one in group)
    return DepthRow(
        layer=place.layer,
        part=place.part,
        values=_means([one.values for one in group]),
        texts=len(group),
        interval=interval,
        without_sinks=_means([one.without or one.values for one in group]) if any_sink else None,
        sinks=tuple(sink for one in group for sink in one.sinks),
        per_text=tuple(group),
    )


def _means(tables: Sequence[Values]) -> Values:
    """Over texts."""
    if len(tables) == 1:
        return tables[0]
    return _named(np.array([_flat(table) for table in tables]).mean(axis=0).tolist(), tables[0])


def _intervals(groups: Sequence[Sequence[Values]], seed: int, device: torch.device) -> list[Intervals | None]:
    """Of each group of texts; None for a single text. Groups of one size are drawn together."""
    found: list[Intervals | None] = [None] * len(groups)
    for texts in {len(group) for group in groups} - {1}:
        alike = [index for index, group in enumerate(groups) if len(group) == texts]
        values = torch.tensor([[_flat(table) for table in groups[index]] for index in alike], dtype=torch.float64)
        ends = bootstrap(values.transpose(0, 1).flatten(1).to(device), seed).unflatten(1, (len(alike), -1)).cpu()
        for index, low, high in zip(alike, *ends.tolist(), strict=True):
            found[index] = _named(list(zip(low, high, strict=True)), groups[index][0])
    return found


def _flat(table: Values) -> list[float]:
    return [value for measures in table.values() for value in measures.values()]


def _named(flat: Sequence[T], like: Values) -> dict[str, dict[str, T]]:
    items = iter(flat)
    return {view: {name: next(items) for name in measures} for view, measures in like.items()}
