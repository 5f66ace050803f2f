"""Does an equilibrium hold? Disturb its tokens, let the layers run, and see where they end."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.dynamics.equilibria.examine import numerical_rank
from rankfall.errors import require, require_count


@final
@dataclass(frozen=True)
class Recovery:
    """Distances are the farthest token's, relative to a token's length. `layers` is how many were run."""

    disturbed_by: float
    distance: float
    rank: int
    residual: float
    layers: int

    @property
    def returned(self) -> bool:
        """Whether the tokens came back to where they were: a hundredth of the way is left, or less."""
        return self.distance <= 0.01 * self.disturbed_by


def recovery(
    layer: NormalisedLayer,
    tokens: Float[Tensor, "n d"],
    size: float,
    *,
    layers: int = 2000,
    generator: torch.Generator | None = None,
) -> Recovery:
    """Move every token by `size` (relative to its length) in a random direction, then run that many layers.

    Rank at the end counts singular values above 1e-6 of the largest: what is still shrinking does not count.
    """
    require_count("the number of layers", layers)
    require(
        0 < size < 1,
        required="a disturbance between 0 and 1, relative to a token's length",
        got=size,
        remedy="for example 1e-3",
    )
    noise = torch.randn(tokens.shape, generator=generator, dtype=torch.float64)
    noise = noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    now = layer.project(tokens + size * layer.length * noise)
    start = _farthest(layer, now, tokens)
    for _ in range(layers):
        now = layer.step(now)
    return Recovery(start, _farthest(layer, now, tokens), numerical_rank(now, 1e-6), layer.residual(now), layers)


def _farthest(layer: NormalisedLayer, now: Tensor, then: Tensor) -> float:
    return float(torch.linalg.vector_norm(now - then, dim=-1).amax()) / layer.length
