"""A-thm4: the biased oscillating target is an exact alternating sum of 2 d^2 + 1 full-rank biased heads."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from rankfall.constructions.base import Construction, Example, Layer, Network, Prediction, embed
from rankfall.errors import require, require_count
from rankfall.mechanism.heads import Heads
from rankfall.theory.harmonics import density_at_zero
from rankfall.theory.targets import biased_target, oscillating_breakpoints

# A bias that no inner product of unit vectors outweighs: the constant head takes x_1 whatever the query.
ALWAYS_FIRST = -1e6
NODES = 80


@final
@dataclass(frozen=True)
class OscillatingSum(Construction):
    """f* = sum_{j=0}^{m} (-1)^j head_j, m = 2 d^2: head j prefers x_1 where <x_1 - x_2, y> > b_j, head 0 always.

    The bias needs a positional code (one coordinate, set on x_1 only), so that scores have rank d + 1. Without the
    constant head the weights of 2 d^2 heads sum to zero and the sum is wrong everywhere.
    """

    name: ClassVar[str] = "oscillating-sum"
    statement: ClassVar[str] = "A-thm4"
    says: ClassVar[str] = "2 d^2 + 1 full-rank biased heads equal the oscillating biased target exactly"

    dim: int
    inverse_temperature: float = math.inf
    points: int = 2

    def __post_init__(self) -> None:
        require_count("dim", self.dim, least=2)
        require(
            self.inverse_temperature > 0 and self.points == 2,
            required="two points and a positive inverse temperature",
            got=f"{self.points} points, inverse temperature {self.inverse_temperature}",
            remedy="leave both out for the exact sum",
        )

    @property
    def heads(self) -> int:
        """2 d^2 + 1, the constant head included."""
        return 2 * self.dim**2 + 1

    @classmethod
    def examples(cls) -> Sequence[Example]:
        return [
            Example(cls(2), samples=3_000),
            Example(cls(5), samples=3_000),
            Example(cls(3, inverse_temperature=20.0)),
            Example(cls(4, inverse_temperature=400.0)),
        ]

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        d, h = self.dim, self.heads
        breakpoints = torch.cat([torch.tensor([ALWAYS_FIRST], dtype=dtype), oscillating_breakpoints(d, dtype)])
        content = embed(torch.eye(d, dtype=dtype), d + 1, 0)
        signs = (-1.0) ** torch.arange(h, dtype=dtype)
        hard = math.isinf(self.inverse_temperature)
        heads = Heads(
            query=torch.nn.functional.pad(content, (0, 1)).expand(h, d + 1, d + 1),
            query_bias=torch.nn.functional.pad(-breakpoints.unsqueeze(-1), (d, 0)),
            key=torch.eye(d + 1, dtype=dtype).expand(h, d + 1, d + 1),
            value=signs.reshape(h, 1, 1) * content,
            scale=1.0 if hard else self.inverse_temperature,
        )
        code = torch.tensor([[1.0], [0.0]], dtype=dtype)
        layer = Layer(heads, "hardmax" if hard else "softmax")
        return Network((layer,), dim=d, width=d + 1, codes=code, residual=False)

    def target(self, points: Tensor, queries: Tensor) -> Tensor:
        return biased_target(points, queries)

    def predicted_error(self) -> Prediction:
        """2 E (p(s) - [piece even])^2 with p = sum_j (-1)^j sigma(c (s - b_j)), s = <x_1 - x_2, y>, by quadrature."""
        c = self.inverse_temperature
        if math.isinf(c):
            return Prediction(0.0, "exact", "hardmax")
        breaks = oscillating_breakpoints(self.dim).numpy()
        total = 0.0
        for piece, (s, weight) in enumerate(_pieces(np.concatenate([[-math.sqrt(2)], breaks, [math.sqrt(2)]]))):
            first = 1.0 + (_alternating(len(breaks)) * expit(c * (s[:, None] - breaks))).sum(axis=1)
            total += float(np.sum(weight * self._density(s) * (first - (piece % 2 == 0)) ** 2))
        return Prediction(2 * total, "exact", "orthonormal points, any temperature")

    def _density(self, s: NDArray[np.float64]) -> NDArray[np.float64]:
        inside = np.maximum(1 - s**2 / 2, 0.0)
        return np.asarray(density_at_zero(self.dim) * inside ** ((self.dim - 3) / 2) / math.sqrt(2))


def _alternating(count: int) -> NDArray[np.float64]:
    return np.asarray((-1.0) ** np.arange(1, count + 1))


def _pieces(edges: NDArray[np.float64]) -> list[tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Nodes and weights on every piece, crowded (cubically) towards both ends, where p changes fast."""
    u, w = np.polynomial.legendre.leggauss(NODES)
    u, w = (u + 1) / 2, w / 2
    # The smoother step 10u^3 - 15u^4 + 6u^5 maps [0,1] onto itself with flat ends.
    inside, slope = u**3 * (10 - 15 * u + 6 * u**2), 30 * (u * (1 - u)) ** 2
    return [(low + (high - low) * inside, (high - low) * slope * w) for low, high in itertools.pairwise(edges)]
