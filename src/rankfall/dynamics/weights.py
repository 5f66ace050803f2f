"""Weights for a simulation: drawn by name, one set per seed, the same in every layer or new in each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, final

import numpy as np
import torch
from torch import Generator, Tensor

from rankfall.attention import Heads
from rankfall.errors import RequestError, require, require_count

Draw = Callable[[int, int, Generator], Tensor]
"""Takes rows, columns and a generator; gives a float64 matrix."""


def _gaussian(rows: int, columns: int, generator: Generator) -> Tensor:
    return torch.randn(rows, columns, generator=generator, dtype=torch.float64) * rows**-0.5


def _xavier(rows: int, columns: int, generator: Generator) -> Tensor:
    reach = (6.0 / (rows + columns)) ** 0.5
    return (2 * torch.rand(rows, columns, generator=generator, dtype=torch.float64) - 1) * reach


def _orthogonal(rows: int, columns: int, generator: Generator) -> Tensor:
    """Haar measure: the sign of R's diagonal is moved into Q, which QR alone would leave biased."""
    square = torch.randn(max(rows, columns), max(rows, columns), generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(square)
    return (q * torch.sign(torch.diagonal(r)))[:rows, :columns]


def _zero(rows: int, columns: int, generator: Generator) -> Tensor:
    return torch.zeros(rows, columns, dtype=torch.float64)


def _identity(rows: int, columns: int, generator: Generator) -> Tensor:
    return torch.eye(rows, columns, dtype=torch.float64)


def _counterexample(rows: int, columns: int, generator: Generator) -> Tensor:
    """[[1, 2], [0, 1]]: two tokens under the causal mask with unit norm keep rank 2 (B-thm3, two-token example)."""
    require(
        rows == columns == 2,
        required="tokens of dimension 2 for the counterexample's value matrix",
        got=f"dimension {rows}",
        remedy="give --tokens 2 --dim 2, or build larger ones with `rankfall equilibrium`",
    )
    return torch.tensor([[1.0, 2.0], [0.0, 1.0]], dtype=torch.float64)


ALL_QUERY_KEYS: dict[str, Draw] = {
    "random": _gaussian,
    "xavier": _xavier,
    "orthogonal": _orthogonal,
    "zero": _zero,
}
ALL_VALUES: dict[str, Draw] = {
    "identity": _identity,
    "orthogonal": _orthogonal,
    "gaussian": _gaussian,
    "counterexample": _counterexample,
}


class Weights(Protocol):
    """Where a simulation takes each layer's weights from."""

    def at(self, layer: int) -> Heads:
        """The weights of that layer, counted from 0; with or without a batch axis in front."""
        ...


@final
@dataclass(frozen=True)
class SharedWeights:
    """The same given weights in every layer."""

    heads: Heads

    def at(self, layer: int) -> Heads:
        return self.heads


@final
@dataclass(frozen=True)
class GivenWeights:
    """Given weights layer by layer, repeated from the start when there are more layers."""

    layers: tuple[Heads, ...]

    def at(self, layer: int) -> Heads:
        return self.layers[layer % len(self.layers)]


@final
@dataclass(frozen=True)
class Recipe:
    """How to draw one layer: H heads of rank r; each head's value map is drawn by name and divided by H."""

    width: int
    query_key: str = "random"
    value: str = "orthogonal"
    heads: int = 1
    rank: int | None = None
    per_layer: bool = False

    def __post_init__(self) -> None:
        require_count("the dimension", self.width)
        require_count("the number of heads", self.heads)
        for kind, name, known in (("query/key", self.query_key, ALL_QUERY_KEYS), ("value", self.value, ALL_VALUES)):
            if name not in known:
                raise RequestError(
                    required=f"{kind} weights among {', '.join(known)}",
                    got=name,
                    remedy=f"for example {next(iter(known))}",
                )
        require(
            1 <= self.head_rank <= self.width,
            required=f"a head rank between 1 and the dimension {self.width}",
            got=self.head_rank,
            remedy="lower the rank or raise the dimension",
        )

    @property
    def head_rank(self) -> int:
        """r: given, or d / H."""
        return self.rank if self.rank is not None else max(1, self.width // self.heads)

    def draw(self, generator: Generator) -> Heads:
        """One layer's weights."""
        query_key, value = ALL_QUERY_KEYS[self.query_key], ALL_VALUES[self.value]

        def stack(draw: Draw, columns: int) -> Tensor:
            return torch.stack([draw(self.width, columns, generator) for _ in range(self.heads)])

        query, key = stack(query_key, self.head_rank), stack(query_key, self.head_rank)
        return Heads(query, key, stack(value, self.width) / self.heads)


@final
class DrawnWeights:
    """Weights drawn for each seed (and for each layer, where the recipe says so); memory does not grow with depth."""

    def __init__(
        self,
        recipe: Recipe,
        seeds: Sequence[int],
        temperatures: Sequence[float] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.recipe, self.seeds, self.device = recipe, tuple(seeds), torch.device(device)
        self.scale: Tensor | None = None
        if temperatures is not None:
            require(
                all(temperature > 0 for temperature in temperatures) and len(temperatures) == len(self.seeds),
                required="one positive temperature for each sample",
                got=list(temperatures),
                remedy="1 is the usual 1/sqrt(r)",
            )
            given = torch.tensor(list(temperatures), dtype=torch.float64, device=self.device)
            self.scale = (1 / (given * recipe.head_rank**0.5))[:, None]
        self._last: tuple[int, Heads] | None = None

    def at(self, layer: int) -> Heads:
        """One set of weights per sample; samples of one seed have the same."""
        place = layer if self.recipe.per_layer else 0
        if self._last is None or self._last[0] != place:
            self._last = (place, self._draw(place))
        return self._last[1]

    def _draw(self, place: int) -> Heads:
        drawn = {seed: self.recipe.draw(generator_for(seed, 1 + place)) for seed in set(self.seeds)}
        stacked = [
            torch.stack([getattr(drawn[seed], name) for seed in self.seeds]).to(self.device)
            for name in ("query", "key", "value")
        ]
        return replace(Heads(*stacked), scale=self.scale)


def generator_for(*numbers: int) -> Generator:
    """A generator of its own for every tuple of numbers: samples do not depend on who else is in the batch."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))
