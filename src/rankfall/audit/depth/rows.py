"""Measurements of several texts at one place as one row: means, intervals, sinks, with and without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, final

import numpy as np

from rankfall.audit.depth.capture import Part, Place
from rankfall.audit.depth.sinks import Sink
from rankfall.measures.views import VIEWS

Values = Mapping[str, Mapping[str, float]]
"""By view (raw, unit, centred), then by measure."""

RESAMPLES = 2000
CONFIDENCE = 0.95


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
    interval: Mapping[str, Mapping[str, tuple[float, float]]] | None = None
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


def gather(measured: Sequence[Measured], seed: int = 0) -> list[DepthRow]:
    """One row per place, in the order of depth."""
    order = {"attention_output": 0, "after_attention": 1, "mlp_output": 2, "before_final_norm": 3, "boundary": 4}
    places = sorted({one.place for one in measured}, key=lambda place: (place.layer, order[place.part]))
    by_place: dict[Place, list[Measured]] = {place: [] for place in places}
    for one in measured:
        by_place[one.place].append(one)
    return [_row(place, sorted(group, key=lambda one: one.text), seed) for place, group in by_place.items()]


def _row(place: Place, group: list[Measured], seed: int) -> DepthRow:
    values = [one.values for one in group]
    any_sink = any(one.without is not None for one in group)
    return DepthRow(
        layer=place.layer,
        part=place.part,
        values=_means(values),
        texts=len(group),
        interval=None if len(group) < 2 else _intervals(values, seed),
        without_sinks=_means([one.without or one.values for one in group]) if any_sink else None,
        sinks=tuple(sink for one in group for sink in one.sinks),
        per_text=tuple(group),
    )


def _means(tables: Sequence[Values]) -> Values:
    """Over texts, of all measures at once: one by one, this took a tenth of a GPU's pass."""
    if len(tables) == 1:
        return tables[0]
    means = iter(np.array([list(_flat(table)) for table in tables]).mean(axis=0).tolist())
    return {view: {name: next(means) for name in measures} for view, measures in tables[0].items()}


def _flat(table: Values) -> Iterator[float]:
    for measures in table.values():
        yield from measures.values()


def _intervals(tables: Sequence[Values], seed: int) -> Mapping[str, Mapping[str, tuple[float, float]]]:
    return {
        view: {name: bootstrap([table[view][name] for table in tables], seed) for name in measures}
        for view, measures in tables[0].items()
    }


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean."""
    data = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(data), size=(RESAMPLES, len(data)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(data[drawn].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)
