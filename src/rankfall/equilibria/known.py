"""Equilibria known in closed form: paper B's two tokens, twisted states on a ring.

The two tokens (B-thm3, B-fig1): token 1 leads, token 2 listens, and LayerNorm keeps them apart.
N = d = 2, token 1 sees itself, token 2 gives weights a21, a22 with c = a21/a22, W_V = [[1, w], [0, 1 + delta]].
Token 1 goes to (0, sgn(w x_1)). With it at (0, 1), token 2 is fixed at
    (0, 1)     multiplier 1/((1 + c)(1 + delta)): rank 1
    p_-, p_+   where the circle meets w x_1 + delta x_2 = -c (1 + delta), multiplier (1 + delta)(1 + c x_2): rank 2
    (0, -1)    only for c < 1, multiplier 1/((1 - c)(1 + delta)), unstable.
For delta = 0, p_-+ = (-c/w, -+sqrt(1 - c^2/w^2)). Token 1's own multiplier is 1/(1 + delta): with delta = 0, as in
the paper, exactly one, so the pair is only marginal (token 1 arrives like 1/(w t)); delta > 0 makes it stable.

Twisted states lie outside B-thm2's hemisphere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.families import Equilibrium
from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import require, require_count
from rankfall.masks import Ring


@final
@dataclass(frozen=True)
class FixedPoint:
    """A place where token 2 stays, token 1 being at (0, 1): its own multiplier, and the rank of the pair."""

    name: str
    point: tuple[float, float]
    multiplier: float
    rank: int

    @property
    def stable(self) -> bool:
        """Whether token 2 alone returns to it, token 1 held."""
        return abs(self.multiplier) < 1


@final
@dataclass(frozen=True)
class TwoTokens:
    """The example with coupling w > 0, attention ratio 0 < c <= 1 and delta >= 0; the paper has c = 1, delta = 0."""

    w: float = 2.0
    ratio: float = 1.0
    delta: float = 0.0

    def __post_init__(self) -> None:
        require(
            0 < self.ratio <= 1 and self.delta >= 0,
            required="0 < ratio <= 1 and delta >= 0",
            got=f"ratio {self.ratio}, delta {self.delta}",
            remedy="ratio 1 is uniform attention; beyond it token 2 jumps across the circle",
        )
        require(
            (1 - self.ratio) * (1 + self.delta) < 1,
            required=f"delta below ratio / (1 - ratio) at ratio {self.ratio}, or (0, -1) would attract",
            got=self.delta,
            remedy="choose a smaller delta or a ratio nearer to 1",
        )
        require(
            self.w > 0 and math.hypot(self.w, self.delta) > self.ratio * (1 + self.delta),
            required=f"w > 0 with sqrt(w^2 + delta^2) > {self.ratio * (1 + self.delta):.6g}, so that rank 2 exists",
            got=self.w,
            remedy="choose a larger w",
        )

    @property
    def layer(self) -> NormalisedLayer:
        """The layer."""
        value = torch.tensor([[1.0, self.w], [0.0, 1 + self.delta]], dtype=torch.float64)
        own = 1 / (1 + self.ratio)
        weights = torch.tensor([[1.0, 0.0], [1 - own, own]], dtype=torch.float64)
        return NormalisedLayer.with_weights(weights, value)

    def crossing(self, sign: int) -> tuple[float, float]:
        """p_+ (sign 1) or p_- (sign -1): where the line of rank-2 fixed points meets the circle."""
        reach = math.hypot(self.w, self.delta)
        foot = -self.ratio * (1 + self.delta) / reach
        along = sign * math.sqrt(1 - foot**2)
        return (foot * self.w - along * self.delta) / reach, (foot * self.delta + along * self.w) / reach

    def fixed_points(self) -> tuple[FixedPoint, ...]:
        """All places where token 2 stays, token 1 being at (0, 1)."""

        def across(sign: int) -> float:
            return (1 + self.delta) * (1 + self.ratio * self.crossing(sign)[1])

        found = [
            FixedPoint("together", (0.0, 1.0), 1 / ((1 + self.ratio) * (1 + self.delta)), 1),
            FixedPoint("apart", self.crossing(-1), across(-1), 2),
            FixedPoint("ridge", self.crossing(1), across(1), 2),
        ]
        if self.ratio < 1:
            found.append(FixedPoint("opposite", (0.0, -1.0), 1 / ((1 - self.ratio) * (1 + self.delta)), 1))
        return tuple(found)

    def equilibrium(self) -> Equilibrium:
        """The pair at rank 2."""
        tokens = torch.tensor([(0.0, 1.0), self.crossing(-1)], dtype=torch.float64)
        parameters = {"w": self.w, "ratio": self.ratio, "delta": self.delta}
        return Equilibrium("two-token", 2, self.layer, tokens, parameters)

    def basin(self) -> tuple[float, float]:
        """The open arc of starts from which token 2 ends apart, token 1 being at (0, 1): two angles in radians.

        From p_+ counterclockwise through (-1, 0) to (0, -1). Its ends do not belong to it: p_+ stays, and (0, -1)
        stays (c < 1) or is sent to zero (c = 1).
        """
        x, y = self.crossing(1)
        return math.atan2(y, x) % (2 * math.pi), 1.5 * math.pi

    def basin_fraction(self) -> float:
        """The arc's share of the circle; for delta = 0: 1/2 - asin(c/w)/(2 pi)."""
        start, end = self.basin()
        return (end - start) / (2 * math.pi)

    def in_basin(self, angles: Float[Tensor, ...]) -> Tensor:
        """Whether token 2 started at that angle ends apart."""
        start, end = self.basin()
        turned = angles % (2 * math.pi)
        return (turned > start) & (turned < end)

    def listen(self, points: Float[Tensor, "*batch 2"], layers: int) -> Float[Tensor, "*batch 2"]:
        """Token 2 after that many layers, for many starts at once, token 1 held at (0, 1)."""
        value = self.layer.value
        pull = torch.tensor([0.0, self.ratio * (1 + self.delta)], dtype=torch.float64)
        for _ in range(layers):
            points = self.layer.project(points @ value + pull)
        return points


def twisted(count: int, turns: int, width: int = 2, reach: int = 1) -> Equilibrium:
    """Tokens that turn `turns` times on the way around the ring."""
    require_count("the number of tokens", count, least=3)
    require_count("the width", width, least=2)
    require(
        2 * reach < count,
        required=f"a ring longer than its window of {2 * reach + 1}",
        got=count,
        remedy="use more tokens, or the complete mask",
    )
    require(
        _sum(count, turns, reach) > 1e-9,
        required="neighbours that do not outweigh the token itself (reach 1: |turns| < N/3)",
        got=f"turns {turns} at {count} tokens",
        remedy="turn less often",
    )
    angles = 2 * math.pi * turns / count * torch.arange(count, dtype=torch.float64)
    tokens = torch.zeros(count, width, dtype=torch.float64)
    tokens[:, 0], tokens[:, 1] = angles.cos(), angles.sin()
    layer = NormalisedLayer(torch.eye(width, dtype=torch.float64), Ring(reach).dense(count))
    parameters = {"turns": turns, "reach": reach}
    return Equilibrium("twisted", 1 if turns % count == 0 else 2, layer, tokens, parameters)


def twisted_multipliers(count: int, turns: int, reach: int = 1) -> tuple[Float[Tensor, n], Float[Tensor, n]]:
    """In the plane, and out of it (each width - 2 times); mode m at index m, the rigid rotation first."""
    shifts = torch.arange(-reach, reach + 1, dtype=torch.float64)
    modes = 2 * math.pi / count * torch.arange(count, dtype=torch.float64)
    waves = (shifts[None, :] * modes[:, None]).cos()
    turned = (shifts * 2 * math.pi * turns / count).cos()
    total = _sum(count, turns, reach)
    return (waves * turned).sum(dim=-1) / total, waves.sum(dim=-1) / total


def _sum(count: int, turns: int, reach: int) -> float:
    return sum(math.cos(2 * math.pi * turns * s / count) for s in range(-reach, reach + 1))
