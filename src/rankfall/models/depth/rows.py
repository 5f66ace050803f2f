"""Measurements of several texts at one place as one row: means, intervals, massive tokens, with and without them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any, TypeVar, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.models.depth.capture import Part, Place
from rankfall.models.depth.massive import MassiveToken

Values = Mapping[str, Mapping[str, float]]
"""By view (raw, unit, centred, centred_unit), then by measure; `most` is the most that each rank can be."""

Intervals = Mapping[str, Mapping[str, tuple[float, float]]]

# What verdicts read, of tokens scaled to length one.
JUDGED = ("first_direction_share", "mean_abs_cosine", "relative_mu", "energy_rank", "effective_rank")

RESAMPLES = 2000
CONFIDENCE = 0.95

T = TypeVar("T")


@final
@dataclass(frozen=True)
class Measured:
    """One text at one place. `without` leaves the massive tokens (`sinks`) out; it is None when there are none.

    `tokens` and `width` are the sizes of the matrix; `rarefied` is the centred effective rank of fewer of the tokens,
    by how many, so that texts of different length can be compared.
    """

    place: Place
    text: int
    values: Values
    without: Values | None = None
    sinks: tuple[MassiveToken, ...] = ()
    tokens: int = 0
    width: int = 0
    rarefied: Mapping[int, float] = field(default_factory=dict)

    @property
    def sink_energy(self) -> float:
        """The share of the energy that all massive tokens hold together."""
        return sum(sink.energy_share for sink in self.sinks)

    def record(self) -> dict[str, Any]:
        """What a verdict reads of this text, as `--json` prints it."""
        return {
            "text": self.text,
            "tokens": self.tokens,
            "width": self.width,
            **{name: self.values["unit"][name] for name in JUDGED},
            "sink_energy": self.sink_energy,
            "rarefied": {str(count): value for count, value in self.rarefied.items()},
        }


@final
@dataclass(frozen=True)
class DepthRow:
    """All texts at one place. `interval` holds (low, high) of the mean over texts, when there are several.

    `module` is the block that gave the tokens; empty at the embeddings.
    """

    layer: int
    part: Part
    values: Values
    texts: int
    interval: Intervals | None = None
    without_sinks: Values | None = None
    sinks: tuple[MassiveToken, ...] = ()
    per_text: tuple[Measured, ...] = field(default=(), repr=False)
    module: str = ""

    @property
    def title(self) -> str:
        """The layer as people and programs name it: `layer 12 (layers.11)`."""
        return layer_title(self.layer, self.module)

    def record(self) -> dict[str, Any]:
        """The row as `--json` prints it."""
        record: dict[str, Any] = {"layer": self.layer, "module": self.module, "part": self.part}
        record |= {view: dict(values) for view, values in self.values.items()}
        record["interval"] = self.interval
        record["sinks"] = [asdict(sink) for sink in self.sinks]
        record["without_sinks"] = self.without_sinks
        record["passages"] = [one.record() for one in self.per_text]
        return record


def layer_title(layer: int, module: str) -> str:
    """A layer by its number and its module."""
    if layer == 0:
        return "the embeddings"
    return f"layer {layer} ({module})" if module else f"layer {layer}"


def spans(layers: Sequence[int]) -> str:
    """Layers as people write them: 3, 12-30."""
    runs: list[list[int]] = []
    for layer in sorted(set(layers)):
        if runs and layer == runs[-1][-1] + 1:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def layers_named(layers: Sequence[int]) -> str:
    """`layer 3`, or `layers 3, 12-30`."""
    return f"layer{'s' if len(set(layers)) > 1 else ''} {spans(layers)}"


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
        module=place.module,
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
    means = values.mT.cpu() @ _resampled(values.shape[0], seed).to(values.dtype).mT
    tail = (1 - CONFIDENCE) / 2
    # NumPy finds the two places by partition; PyTorch sorts.
    return torch.from_numpy(np.quantile(means.numpy(), [tail, 1 - tail], axis=1)).to(values)


@cache
def _resampled(texts: int, seed: int) -> Float[Tensor, "r t"]:
    """The weight of each text in each resample."""
    drawn = np.random.default_rng(seed).integers(0, texts, size=(RESAMPLES, texts))
    places = drawn + texts * np.arange(RESAMPLES)[:, None]
    times = np.bincount(places.ravel(), minlength=RESAMPLES * texts).reshape(RESAMPLES, texts)
    return torch.from_numpy(times / texts)


def _flat(table: Values) -> list[float]:
    return [value for measures in table.values() for value in measures.values()]


def _named(flat: Sequence[T], like: Values) -> dict[str, dict[str, T]]:
    items = iter(flat)
    return {view: {name: next(items) for name in measures} for view, measures in like.items()}
