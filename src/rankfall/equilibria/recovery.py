"""Whether tokens that are moved away from an equilibrium come back to it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.examine import numerical_rank
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import require, require_count
from rankfall.progress import Progress, silent

# After noise in every layer, so many without: what only the noise held up is gone then.
QUIET_LAYERS = 500


@final
@dataclass(frozen=True)
class Recovery:
    """One disturbed run. Distances are the farthest token's, relative to a token's length."""

    disturbed_by: float
    distance: float
    rank: int
    residual: float
    layers: int
    every_layer: bool

    @property
    def returned(self) -> bool:
        """Whether the tokens came back to where they were: a hundredth of the way is left, or less."""
        return self.distance <= 0.01 * self.disturbed_by


def recoveries(
    layer: NormalisedLayer,
    tokens: Float[Tensor, "n d"],
    size: float,
    *,
    layers: int = 2000,
    draws: int = 1,
    every_layer: bool = False,
    generator: torch.Generator | None = None,
    progress: Progress = silent,
) -> list[Recovery]:
    """Move every token by `size` (relative to its length) in a random direction, then run that many layers.

    With `every_layer` the tokens are moved before each of them, and QUIET_LAYERS follow without: the noise itself has
    full rank. Rank at the end counts singular values above 1e-6 of the largest: what still shrinks does not count.
    """
    require_count("the number of layers", layers)
    require_count("the number of draws", draws)
    require(
        0 < size < 1,
        required="a disturbance between 0 and 1, relative to a token's length",
        got=size,
        remedy="for example 1e-3",
    )
    found = []
    for draw in range(draws):
        now = _moved(layer, tokens, size, generator)
        start = _farthest(layer, now, tokens)
        for step in range(layers):
            now = layer.step(_moved(layer, now, size, generator) if every_layer and step > 0 else now)
        for _ in range(QUIET_LAYERS if every_layer else 0):
            now = layer.step(now)
        end, rank = _farthest(layer, now, tokens), numerical_rank(now, 1e-6)
        found.append(Recovery(start, end, rank, layer.residual(now), layers, every_layer))
        progress(f"running {layers} layers", (draw + 1) / draws)
    return found


def _moved(layer: NormalisedLayer, tokens: Tensor, size: float, generator: torch.Generator | None) -> Tensor:
    noise = torch.randn(tokens.shape, generator=generator, dtype=torch.float64)
    noise = noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    return layer.settled(tokens + size * layer.length * noise)


def _farthest(layer: NormalisedLayer, now: Tensor, then: Tensor) -> float:
    return float(torch.linalg.vector_norm(now - then, dim=-1).amax()) / layer.length
