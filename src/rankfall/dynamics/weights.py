"""Weights for a simulation: drawn by name, one set per seed, the same in every layer or new in each."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Protocol, final

import numpy as np
import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rankfall.errors import require, require_count, require_one_of
from rankfall.mechanism.attend import expand_groups, head_scale
from rankfall.mechanism.heads import Heads, value_forms

LEAST_TEMPERATURE = 1e-100
"""Scores are divided by it, and must stay numbers."""

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
        required="tokens of width 2 for the counterexample's value matrix",
        got=f"width {rows}",
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
class GivenWeights:
    """Given weights layer by layer, repeated from the start when there are more layers: one for all of them, say."""

    layers: tuple[Heads, ...]

    def at(self, layer: int) -> Heads:
        return self.layers[layer % len(self.layers)]


@final
@dataclass(frozen=True)
class WeightRecipe:
    """How to draw one layer: H heads of rank r; each head's value map is drawn by name and divided by H."""

    width: int
    query_key: str = "random"
    value: str = "orthogonal"
    heads: int = 1
    rank: int | None = None
    per_layer: bool = False

    def __post_init__(self) -> None:
        require_count("the width", self.width)
        require_count("the number of heads", self.heads)
        require_one_of("query/key weights", self.query_key, ALL_QUERY_KEYS)
        require_one_of("value weights", self.value, ALL_VALUES)
        require_count("the rank of a head", self.head_rank, most=self.width, remedy="raise the width")

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
        recipe: WeightRecipe,
        seeds: Sequence[int],
        temperatures: Sequence[float] | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        self.recipe, self.seeds, self.device = recipe, tuple(seeds), torch.device(device)
        self.scale: Tensor | None = None
        if temperatures is not None:
            require(
                all(one >= LEAST_TEMPERATURE for one in temperatures) and len(temperatures) == len(self.seeds),
                required=f"one positive temperature for each sample, of at least {LEAST_TEMPERATURE:g}",
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


def alike_in_all_layers(weights: Weights) -> bool:
    """Whether it is known that every layer has the same weights, the very same object."""
    if isinstance(weights, DrawnWeights):
        return not weights.recipe.per_layer
    return isinstance(weights, GivenWeights) and all(one is weights.layers[0] for one in weights.layers)


def generator_for(*numbers: int) -> Generator:
    """A generator of its own for every tuple of numbers: samples do not depend on who else is in the batch."""
    return torch.Generator().manual_seed(int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> 1))


@final
class PreparedHeads:
    """One layer's weights with what is computed from them at most once; weights shared by layers pay only once."""

    def __init__(self, heads: Heads) -> None:
        self.heads = heads
        self.biased = heads.value_bias is not None or heads.output_bias is not None

    @cached_property
    def query(self) -> Float[Tensor, "... h d r"]:
        """Query maps with the factor of the scores in them."""
        return self.heads.query * head_scale(self.heads.scale, self.heads.query)

    @cached_property
    def query_bias(self) -> Float[Tensor, "... h r"] | None:
        """Query biases with the factor of the scores in them."""
        if self.heads.query_bias is None:
            return None
        factor = head_scale(self.heads.scale, self.heads.query)
        return self.heads.query_bias * (factor[..., 0] if isinstance(factor, Tensor) and factor.ndim > 0 else factor)

    @cached_property
    def joined(self) -> Float[Tensor, "... h d f"]:
        """Query, key and value maps side by side: one product instead of three."""
        heads = self.heads
        parts = [self.query, expand_groups(heads.key, heads.heads), expand_groups(heads.value, heads.heads)]
        widest = max(parts, key=lambda part: part.ndim).shape[:-3]
        return torch.cat([part.expand(*widest, *part.shape[-3:]) for part in parts], dim=-1).contiguous()

    def project(self, tokens: Float[Tensor, "b n d"]) -> Float[Tensor, "b h n f"]:
        """Scaled queries, keys and values side by side, without biases."""
        if tokens.shape[0] == self.heads.heads == 1:
            return (tokens[0] @ self.joined.reshape(self.joined.shape[-2:]))[None, None]
        return tokens[:, None] @ self.joined

    def parts(self, projected: Float[Tensor, "b h n f"]) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (b, h, n, r), keys (b, h, n, r) and values (b, h, n, v) of what `project` gave."""
        rank = self.heads.rank
        query, key, value = projected.split([rank, rank, self.heads.value_rank], dim=-1)
        return query, key, value

    @cached_property
    def value_sum(self) -> Float[Tensor, "*b d o"]:
        """Sum over heads of V_h O_h: the layer's map when all heads average alike."""
        return self.value_maps.sum(dim=-3)

    @cached_property
    def value_maps(self) -> Float[Tensor, "*b h d o"]:
        """V_h O_h of every head."""
        return _single(value_forms(self.heads)).contiguous()

    @cached_property
    def score_forms(self) -> Float[Tensor, "*b h d d"]:
        """scale * W_q W_k^T of every head."""
        return _single(self.query @ expand_groups(self.heads.key, self.heads.heads).mT)

    @cached_property
    def only_score_form(self) -> Float[Tensor, "*b d d"]:
        """The same of a layer with one head."""
        return self.score_forms[..., 0, :, :]

    @cached_property
    def log_strength(self) -> float:
        """log of s with |score - row constant| <= s e^(2K + l) (1 + e^l) in normal form, biases left out."""
        norms = [float(torch.linalg.matrix_norm(weight).max()) for weight in (self.query, self.heads.key)]
        return self._log(norms[0] * norms[1] * self.heads.width)

    @cached_property
    def log_bias_strength(self) -> float:
        """log of s with |score from the query bias| <= s e^(K + l)."""
        if self.query_bias is None:
            return -math.inf
        bias = float(torch.linalg.vector_norm(self.query_bias, dim=-1).max())
        key = float(torch.linalg.matrix_norm(self.heads.key).max())
        return self._log(bias * key * self.heads.width**0.5)

    @staticmethod
    def _log(value: float) -> float:
        return math.log(value) if value > 0 else -math.inf


def _single(maps: Float[Tensor, "... h d o"]) -> Float[Tensor, "*b h d o"]:
    """A batch of one without its axis: single matrices multiply several times faster than a batch of one."""
    return maps[0] if maps.ndim == 4 and maps.shape[0] == 1 else maps


def take_heads(heads: Heads, index: Tensor) -> Heads:
    """The weights of these samples; weights that all samples share stay shared."""
    own_axes = {"query": 3, "key": 3, "value": 3, "output": 3, "output_bias": 1, "scale": 1}
    picked = {}
    for field in fields(heads):
        given = getattr(heads, field.name)
        batched = isinstance(given, Tensor) and given.ndim > own_axes.get(field.name, 2)
        picked[field.name] = given[index] if batched and given.shape[0] > 1 else given
    return Heads(**picked)
