"""All measures of all views at every boundary of a model's run, in rows.

Tokens are measured while the model runs, at most `NUMBERS_AT_ONCE` of them together, so that memory does not grow
with depth; matrices of one shape are measured in one call.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor, nn

from rankfall.catalogue import MEASURES
from rankfall.errors import RequestError, require
from rankfall.measures.base import NUMBERS_AT_ONCE, as_tokens
from rankfall.measures.measures import EFFECTIVE_RANK
from rankfall.measures.profile import VIEWS, views
from rankfall.models.depth.capture import Place, capture
from rankfall.models.depth.massive import find_massive
from rankfall.models.depth.pooled import Pool
from rankfall.models.depth.rows import DepthRow, Measured, Values, gather, layer_title
from rankfall.models.inputs.calling import Inputs, as_calls
from rankfall.models.recording.blocks import BlockStack

# A rank grows with the number of tokens. Texts of different length are compared by so many of their tokens, drawn at
# random so many times; the same tokens at every place.
RAREFIED = (16, 32, 64)
DRAWS = 4

Real = Sequence[Tensor | None]
"""For each text which positions are real tokens, (n,) boolean; None where all are."""


def measure_depth(
    model: nn.Module,
    inputs: Inputs,
    *,
    real: Real,
    names: Sequence[list[str]],
    layers: Collection[int] | None = None,
    inside: bool = False,
    stack: str | BlockStack | None = None,
    chosen: Collection[str] = VIEWS,
    without_sinks: bool = True,
    seed: int = 0,
    also: Pool | None = None,
) -> list[DepthRow]:
    """Rows of all measures of the chosen views at every boundary, padding left out.

    Several calls read one text after the other. `layers` limits what is measured (default: all) to these and the
    last; `without_sinks` repeats all measures without the massive tokens, where there are some; `also` is handed
    the same tokens.
    """
    taken = DepthMeasurement(real, names, layers, without_sinks, chosen)

    def take(place: Place, tokens: Tensor) -> None:
        taken.take(place, tokens)
        if also is not None:
            also.take(place, tokens)

    for call in as_calls(inputs):
        capture(model, call, take, inside=inside, stack=stack)
        taken.next_texts()
        if also is not None:
            also.next_texts()
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
        chosen: Collection[str] = VIEWS,
    ) -> None:
        self._real, self._names, self._layers, self._without_sinks = real, names, layers, without_sinks
        self._chosen = chosen
        self._waiting: list[_Taken] = []
        self._newest: list[_Taken] = []
        self._found: list[Measured] = []
        self._first, self._texts = 0, 0

    def take(self, place: Place, tokens: Tensor) -> None:
        """Copy the tokens (b, n, d) of the texts; measure what waits when there is enough."""
        taken = []
        self._texts = self._first + len(tokens)
        for text, given in enumerate(tokens.detach(), self._first):
            real = self._real_of(text, given)
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

    def next_texts(self) -> None:
        """What is taken from now on are the texts after those that were taken so far, whose run is over."""
        self._first = self._texts
        self._waiting += self._newest
        self._newest = []

    def _real_of(self, text: int, tokens: Tensor) -> Tensor | None:
        """Which of a text's tokens are real; a stack of another part of the model has tokens of its own, all real."""
        real = self._real[text] if text < len(self._real) else None
        return real if real is not None and real.shape[0] == tokens.shape[0] else None

    def measured(self) -> list[Measured]:
        """Every text at every place."""
        self.next_texts()
        self._measure()
        return list(self._found)

    def rows(self, seed: int = 0) -> list[DepthRow]:
        """One row for each place; `seed` draws the intervals over texts."""
        return gather(self.measured(), seed)

    def _measure(self) -> None:
        waiting, self._waiting = self._waiting, []
        self._found += _measured(waiting, self._names, self._without_sinks, self._chosen)


def _measured(
    taken: Sequence[_Taken], names: Sequence[list[str]], without_sinks: bool, chosen: Collection[str]
) -> list[Measured]:
    sinks = [tuple(find_massive(one.tokens, one.text, _names(one, names))) for one in taken]
    repeated = [at for at, some in enumerate(sinks) if some and without_sinks]
    rest = [_without(taken[at].tokens, [sink.position for sink in sinks[at]]) for at in repeated]
    try:
        values = _values([*(one.tokens for one in taken), *rest], chosen)
    except RequestError:
        _require_finite(taken)
        raise
    without = dict(zip(repeated, values[len(taken) :], strict=True))
    fewer = _rarefied(taken)
    return [
        Measured(
            one.place,
            one.text,
            values[at],
            without.get(at),
            sinks[at],
            tokens=one.tokens.shape[0],
            width=one.tokens.shape[1],
            rarefied=fewer.get(at, {}),
        )
        for at, one in enumerate(taken)
    ]


def _require_finite(taken: Sequence[_Taken]) -> None:
    """Name the first layer at which a number is NaN or infinite."""
    for one in sorted(taken, key=lambda one: one.place.layer):
        bad = one.tokens[~torch.isfinite(one.tokens)]
        require(
            bad.numel() == 0,
            required="finite tokens at every layer",
            got=f"{float(bad[0]) if bad.numel() else 0} at {layer_title(one.place.layer, one.place.module)}, text"
            f" {one.text + 1}",
            remedy="look for NaN in the weights of that block; for overflow in half precision, try --dtype float32",
        )


def _rarefied(taken: Sequence[_Taken]) -> dict[int, dict[int, float]]:
    """By position in `taken`, of the token stream alone: what stands inside blocks is not judged."""
    alike: dict[Any, list[int]] = {}
    for at, one in enumerate(taken):
        if one.place.part in ("boundary", "before_final_norm"):
            alike.setdefault((one.tokens.shape, one.tokens.dtype, one.tokens.device), []).append(at)
    found: dict[int, dict[int, float]] = {at: {} for places in alike.values() for at in places}
    for places in alike.values():
        tokens = as_tokens(torch.stack([taken[at].tokens for at in places]))
        for count in RAREFIED:
            if count <= tokens.shape[1]:
                for at, value in zip(places, rarefied_rank(tokens, count).tolist(), strict=True):
                    found[at][count] = value
    return found


def rarefied_rank(tokens: Float[Tensor, "k n d"], count: int) -> Float[Tensor, " k"]:
    """Centred effective rank of `count` of the tokens, each scaled to length one: geometric mean over draws."""
    drawn = _drawn(tokens.shape[1], count).to(tokens.device)
    ranks = EFFECTIVE_RANK.of(views(tokens[:, drawn], ["centred_unit"])["centred_unit"])
    return ranks.clamp_min(torch.finfo(ranks.dtype).tiny).log().mean(dim=-1).exp()


@cache
def _drawn(tokens: int, count: int) -> Tensor:
    """Which tokens to take, (draws, count): the same at every layer, in every control and in every audit."""
    if tokens == count:
        return torch.arange(tokens)[None]
    generator = torch.Generator().manual_seed(count)
    return torch.stack([torch.randperm(tokens, generator=generator)[:count].sort().values for _ in range(DRAWS)])


def _names(taken: _Taken, names: Sequence[list[str]]) -> list[str]:
    """The names of the text's tokens, where there is one for each."""
    found = names[taken.text] if taken.text < len(names) else []
    return found if len(found) == len(taken.tokens) else []


def _without(tokens: Tensor, positions: Sequence[int]) -> Tensor:
    kept = torch.ones(len(tokens), dtype=torch.bool)
    kept[list(positions)] = False
    return tokens[kept.to(tokens.device)]


def _values(matrices: Sequence[Tensor], chosen: Collection[str]) -> list[Values]:
    """Of each matrix (n, d); those of one kind are measured together."""
    alike: dict[Any, list[int]] = {}
    for at, one in enumerate(matrices):
        alike.setdefault((one.shape, one.dtype, one.device), []).append(at)
    found: dict[int, Values] = {}
    for places in alike.values():
        columns = {
            view: {one.name: one.of(profile).tolist() for one in MEASURES}
            | {"most": [float(profile.most)] * len(places)}
            for view, profile in views(as_tokens(torch.stack([matrices[at] for at in places])), chosen).items()
        }
        for row, at in enumerate(places):
            found[at] = {view: {name: some[row] for name, some in table.items()} for view, table in columns.items()}
    return [found[at] for at in range(len(matrices))]
