"""Measurements of several texts at one place as one row: means, intervals, sinks, with and without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    any_sink = any(one.without is not None for one in group)
    return DepthRow(
        layer=place.layer,
        part=place.part,
        values=_combined([one.values for one in group], lambda values: float(np.mean(values))),
        texts=len(group),
        interval=None if len(group) < 2 else _combined([one.values for one in group], lambda v: bootstrap(v, seed)),
        without_sinks=_combined([one.without or one.values for one in group], lambda values: float(np.mean(values)))
        if any_sink
        else None,
        sinks=tuple(sink for one in group for sink in one.sinks),
        per_text=tuple(group),
    )


def _combined(tables: Sequence[Values], how: Any) -> Any:
    return {
        view: {name: how([table[view][name] for table in tables]) for name in tables[0][view]} for view in tables[0]
    }


def bootstrap(values: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """Percentile bootstrap interval of the mean."""
    data = np.asarray(values, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(0, len(data), size=(RESAMPLES, len(data)))
    tail = 100 * (1 - CONFIDENCE) / 2
    low, high = np.percentile(data[drawn].mean(axis=1), [tail, 100 - tail])
    return float(low), float(high)
