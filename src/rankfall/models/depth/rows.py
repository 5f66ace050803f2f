"""Measurements of several texts at one place as one row: means, intervals, sinks, with and without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.models.depth.capture import Part, Place
from rankfall.models.depth.sinks import Sink

Values = Mapping[str, Mapping[str, float]]
"""By view (raw, unit, centred, centred_unit), then by measure; `most` is the most that each rank can be."""

Intervals = Mapping[str, Mapping[str, tuple[float, float]]]

RESAMPLES = 2000
CONFIDENCE = 0.95

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
        record |= {view: dict(values) for view, values in self.values.items()}
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
        values=_means([one.values for one in group]),
        texts=len(group),
        interval=_interval([one.values for one in group], seed),
        without_sinks=_means([one.without or one.values for one in group]) if any_sink else None,
        sinks=tuple(sink for one in group for sink in one.sinks),
        per_text=tuple(group),
    )


def _means(tables: Sequence[Values]) -> Values:
    """Over texts."""
    if len(tables) == 1:
        return tables[0]
    return _named(np.array([_flat(table) for table in tables]).mean(axis=0).tolist(), tables[0])


def _interval(tables: Sequence[Values], seed: int) -> Intervals | None:
    if len(tables) == 1:
        return None
    ends = bootstrap(torch.tensor([_flat(table) for table in tables], dtype=torch.float64), seed)
    named = _named([(low, high) for low, high in ends.T.tolist()], tables[0])
    # The most that a rank can be is a fact about sizes, not an estimate.
    return {view: {name: both for name, both in some.items() if name != "most"} for view, some in named.items()}


def bootstrap(values: Float[Tensor, "t k"], seed: int = 0) -> Float[Tensor, "2 k"]:
    """Lower and upper end for the mean over t texts of each of k quantities, by percentiles, all drawn alike."""
    texts = values.shape[0]
    drawn = np.random.default_rng(seed).integers(0, texts, size=(RESAMPLES, texts))
    times = (drawn[:, :, None] == np.arange(texts)).sum(axis=1) / texts
    means = torch.from_numpy(times).to(values) @ values
    tail = (1 - CONFIDENCE) / 2
    return means.quantile(torch.tensor([tail, 1 - tail], dtype=means.dtype), dim=0)


def _flat(table: Values) -> list[float]:
    return [value for measures in table.values() for value in measures.values()]


def _named(flat: Sequence[T], like: Values) -> dict[str, dict[str, T]]:
    items = iter(flat)
    return {view: {name: next(items) for name in measures} for view, measures in like.items()}
