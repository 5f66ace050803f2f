"""All measures of all views at every boundary of a model's run, in rows.

Tokens are measured while the model runs, at most `NUMBERS_AT_ONCE` of them together, so that memory does not grow
with depth; matrices of one shape are measured in one call.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn

from rankfall.catalogue import MEASURES
from rankfall.measures.measures import NUMBERS_AT_ONCE, as_tokens
from rankfall.measures.profile import views
from rankfall.models.depth.capture import Place, capture
from rankfall.models.depth.rows import DepthRow, Measured, Values, gather
from rankfall.models.depth.sinks import find_sinks

Real = Sequence[Tensor | None]
"""For each text which positions are real tokens, (n,) boolean; None where all are."""


def measure_depth(
    model: nn.Module,
    inputs: Mapping[str, Any],
    *,
    real: Real,
    names: Sequence[list[str]],
    layers: Collection[int] | None = None,
    inside: bool = False,
    stack: str | None = None,
    without_sinks: bool = True,
    seed: int = 0,
) -> list[DepthRow]:
    """Rows of all measures of all views at every boundary, padding left out.

    `layers` limits what is measured (default: all) to these and the last; `without_sinks` repeats all measures
    without the sinks, where there are some.
    """
    taken = DepthMeasurement(real, names, layers, without_sinks)
    capture(model, inputs, taken.take, inside=inside, stack=stack)
    return taken.rows(seed)


@final
@dataclass(frozen=True, eq=False)
class _Taken:
    """One text's tokens (n, d) at one place, padding left out."""

    place: Place
    text: int
    tokens: Tensor


@final
class DepthMeasurement:
    """Takes tokens as a model hands them over; the arguments are those of `measure_depth`."""

    def __init__(
        self,
        real: Real,
        names: Sequence[list[str]],
        layers: Collection[int] | None = None,
        without_sinks: bool = True,
    ) -> None:
        self._real, self._names, self._layers, self._without_sinks = real, names, layers, without_sinks
        self._waiting: list[_Taken] = []
        self._newest: list[_Taken] = []
        self._found: list[Measured] = []

    def take(self, place: Place, tokens: Tensor) -> None:
        """Copy the tokens (b, n, d) of the texts; measure what waits when there is enough."""
        taken = []
        for text, given in enumerate(tokens.detach()):
            real = self._real[text]
            taken.append(_Taken(place, text, given.clone() if real is None else given[real]))
        if self._newest and self._newest[0].place.layer != place.layer:
            self._newest = []
        if self._layers is not None and place.layer not in self._layers:
            # Which layer is the last is known when the run is over.
            self._newest += taken
            return
        self._waiting += taken
        if sum(one.tokens.numel() for one in self._waiting) >= NUMBERS_AT_ONCE:
            self._measure()

    def rows(self, seed: int = 0) -> list[DepthRow]:
        """One row for each place; `seed` draws the intervals over texts."""
        self._waiting += self._newest
        self._newest = []
        self._measure()
        return gather(self._found, seed)

    def _measure(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._found += _measured(waiting, self._names, self._without_sinks)


def _measured(taken: Sequence[_Taken], names: Sequence[list[str]], without_sinks: bool) -> list[Measured]:
    sinks = [tuple(find_sinks(one.tokens, one.text, names[one.text])) for one in taken]
    repeated = [at for at, some in enumerate(sinks) if some and without_sinks]
    rest = [_without(taken[at].tokens, [sink.position for sink in sinks[at]]) for at in repeated]
    values = _values([*(one.tokens for one in taken), *rest])
    without = dict(zip(repeated, values[len(taken) :], strict=True))
    return [Measured(one.place, one.text, values[at], without.get(at), sinks[at]) for at, one in enumerate(taken)]


def _without(tokens: Tensor, positions: Sequence[int]) -> Tensor:
    kept = torch.ones(len(tokens), dtype=torch.bool)
    kept[list(positions)] = False
    return tokens[kept.to(tokens.device)]


def _values(matrices: Sequence[Tensor]) -> list[Values]:
    """Of each matrix (n, d); those of one kind are measured together."""
    alike: dict[Any, list[int]] = {}
    for at, one in enumerate(matrices):
        alike.setdefault((one.shape, one.dtype, one.device), []).append(at)
    found: dict[int, Values] = {}
    for places in alike.values():
        columns = {
            view: {one.name: one.of(profile).tolist() for one in MEASURES}
            | {"most": [float(profile.most)] * len(places)}
            for view, profile in views(as_tokens(torch.stack([matrices[at] for at in places]))).items()
        }
        for row, at in enumerate(places):
            found[at] = {view: {name: some[row] for name, some in table.items()} for view, table in columns.items()}
    return [found[at] for at in range(len(matrices))]
