"""What a construction is: explicit weights for a statement of paper A, the error they must have, a run to test it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.mechanism.attend import Kind
from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.targets import nearest_neighbour, orthonormal_points, uniform_sphere

Law = Literal["orthonormal", "independent"]
"""Of the points: a uniformly rotated orthonormal frame, or each uniform on the sphere."""

Exactness = Literal["exact", "asymptotic", "limit"]

ENTRIES_AT_ONCE = 4_000_000
"""Numbers that one intermediate of a run may hold."""


@dataclass(frozen=True)
class Layer:
    """The heads of one layer and how they choose."""

    heads: Heads
    kind: Kind


@dataclass(frozen=True)
class Network:
    """Layers, the positional codes (n, c) put behind the points, and the column where the answer's d numbers start.

    `dim` is d, `width` the number of all slots. Without `residual` (one layer only) the layer's output is the stream.
    """

    layers: tuple[Layer, ...]
    dim: int
    width: int
    codes: Float[Tensor, "n c"] | None = None
    answer_at: int = 0
    residual: bool = True

    @property
    def heads(self) -> int:
        """Heads of all layers together."""
        return sum(layer.heads.heads for layer in self.layers)

    @property
    def rank(self) -> int:
        """The largest query/key rank of any head."""
        return max(layer.heads.rank for layer in self.layers)

    def __call__(
        self, points: Float[Tensor, "... n d"], queries: Float[Tensor, "... m d"]
    ) -> Float[Tensor, "... m d"]:
        """The answers for these points and queries."""
        context, stream = self.context_tokens(points), self._pad(queries)
        for layer in self.layers:
            came_back = attention(layer.heads, stream, context, kind=layer.kind)
            stream = stream + came_back if self.residual else came_back
        return stream[..., self.answer_at : self.answer_at + self.dim]

    def context_tokens(self, points: Float[Tensor, "... n d"]) -> Float[Tensor, "... n w"]:
        """[x_i | code_i | zeros]."""
        require(
            points.shape[-1] == self.dim,
            required=f"points of dimension {self.dim}, as the construction was built for",
            got=f"shape {tuple(points.shape)}",
            remedy="build it for that dimension",
        )
        if self.codes is None:
            return self._pad(points)
        require(
            points.shape[-2] == self.codes.shape[0],
            required=f"{self.codes.shape[0]} points, one for each positional code",
            got=f"{points.shape[-2]}",
            remedy="build it for that number of points",
        )
        codes = self.codes.to(points).expand(*points.shape[:-2], *self.codes.shape)
        return self._pad(torch.cat([points, codes], dim=-1))

    def _pad(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.pad(tokens, (0, self.width - tokens.shape[-1]))


def embed(block: Float[Tensor, "... rows columns"], width: int, at: int) -> Float[Tensor, "... width columns"]:
    """The block as rows `at`, `at`+1, ... of a taller zero matrix: a map that reads (or writes) one slot only."""
    rows = block.shape[-2]
    return torch.nn.functional.pad(block, (0, 0, at, width - at - rows))


@dataclass(frozen=True)
class Prediction:
    """The mean squared error E||output - target||^2 that theory gives, summed over the d coordinates.

    `exact`: equal up to quadrature. `asymptotic`: leading term as `when` says. `limit`: the value approached.
    """

    mse: float
    exactness: Exactness
    when: str


class Construction(ABC):
    """Weights by formula. Subclasses are frozen dataclasses of their parameters and final."""

    name: ClassVar[str]
    statement: ClassVar[str]
    """The id of the statement that it realises, such as `A-fact`."""
    says: ClassVar[str]
    """That statement in one sentence, as this construction makes it concrete."""

    dim: int
    points: int

    @classmethod
    @abstractmethod
    def examples(cls) -> Sequence[Example]:
        """Instances of at least two sizes, the smallest first: the tests run each and compare with its prediction."""

    @abstractmethod
    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        """The network. Constructions with random heads draw them from the generator; the others ignore it."""

    @abstractmethod
    def predicted_error(self) -> Prediction:
        """What theory says of the error on orthonormal points, averaged over the random heads where there are any."""

    def target(self, points: Tensor, queries: Tensor) -> Tensor:
        """What the network is to output for (..., n, d) points and (..., m, d) queries."""
        return nearest_neighbour(points, queries)


@dataclass(frozen=True)
class Example:
    """An instance, and the run that its prediction must agree with to four standard errors.

    `networks` is for random heads, `law` for predictions about other points than orthonormal ones. `slack` is the
    share of an asymptotic prediction that the next term may add; zero for the others.
    """

    construction: Construction
    samples: int = 20_000
    networks: int = 1
    law: Law = "orthonormal"
    slack: float = 0.0


@dataclass(frozen=True)
class SampledError:
    """A mean squared error over samples, its standard error, and the share of wrong answers."""

    mse: float
    standard_error: float
    wrong: float
    samples: int


def draw_points(law: Law, shape: tuple[int, int, int], generator: torch.Generator) -> Tensor:
    """Points (b, n, d) by the name of their law."""
    return orthonormal_points(shape, generator) if law == "orthonormal" else uniform_sphere(shape, generator)


def sampled_error(
    construction: Construction,
    samples: int,
    seed: int,
    *,
    law: Law = "orthonormal",
    networks: int = 1,
) -> SampledError:
    """E||network - target||^2 over fresh points and queries.

    Constructions with random heads are drawn `networks` times, and the standard error is then the one between
    networks; with one network it is the one between samples and says nothing about other draws of the heads.
    """
    require_count("samples", samples, least=2)
    require_count("networks", networks)
    generator = torch.Generator().manual_seed(seed)
    means, wrongs = [], []
    spread = 0.0
    for _ in range(networks):
        network = construction.build(generator)
        errors = torch.cat(
            [
                _errors(construction, network, law, size, generator)
                for size in _batches(construction, network, samples)
            ]
        )
        means.append(errors.mean())
        wrongs.append((errors > 1e-6).double().mean())
        spread = float(errors.std()) / math.sqrt(samples)
    mse, wrong = torch.stack(means), float(torch.stack(wrongs).mean())
    if networks > 1:
        spread = float(mse.std()) / math.sqrt(networks)
    return SampledError(float(mse.mean()), spread, wrong, samples * networks)


def _errors(
    construction: Construction, network: Network, law: Law, samples: int, generator: torch.Generator
) -> Tensor:
    points = draw_points(law, (samples, construction.points, construction.dim), generator)
    queries = uniform_sphere((samples, 1, construction.dim), generator)
    return (network(points, queries) - construction.target(points, queries)).square().sum(dim=(-1, -2))


def _batches(construction: Construction, network: Network, samples: int) -> list[int]:
    """Batch sizes such that no intermediate of any layer holds more than ENTRIES_AT_ONCE numbers."""
    n = construction.points
    per_sample = max(
        one.heads.heads * (n + 1) * max(one.heads.rank, one.heads.value_rank, n) for one in network.layers
    )
    size = max(1, min(samples, ENTRIES_AT_ONCE // per_sample))
    full, rest = divmod(samples, size)
    return [size] * full + ([rest] if rest else [])
