"""The ordinary route run beside the exact one, to say down to which mu it would have been right."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rankfall.attention import Heads
from rankfall.dynamics.mixing import Group
from rankfall.dynamics.rule import Rule
from rankfall.dynamics.step import grouped_step
from rankfall.measures import measure

# The routes agree while their log10 mu differ by less than this: mu within about two per cent.
AGREEMENT = 0.01


@final
@dataclass(frozen=True)
class OrdinaryFloor:
    """How far the ordinary float64 route was right: the last layer and the log10 mu there.

    `reached` is false when it was still right at the end of the run.
    """

    layer: int
    log10_mu: float
    reached: bool


@final
class OrdinaryRoute:
    """Follows the same layers in plain float64 until every sample has gone wrong."""

    def __init__(self, tokens: Tensor) -> None:
        self.tokens = tokens.double()
        batch = tokens.shape[0]
        self.right = torch.ones(batch, dtype=torch.bool, device=tokens.device)
        self.layer = torch.zeros(batch, dtype=torch.int64, device=tokens.device)
        self.log10_mu = torch.full((batch,), math.nan, dtype=torch.float64, device=tokens.device)

    @property
    def active(self) -> bool:
        """Whether any sample is still right."""
        return bool(self.right.any())

    def follow(self, layer: int, exact_log_mu: Tensor) -> None:
        """Compare at the state after `layer` layers."""
        exact = exact_log_mu / math.log(10)
        plain = measure(self.tokens, ["mu"])["mu"].log10()
        agrees = (plain - exact).abs() < AGREEMENT
        agrees |= (plain == -torch.inf) & (exact == -torch.inf)
        self.right &= agrees
        self.layer[self.right] = layer
        self.log10_mu = torch.where(self.right, exact, self.log10_mu)

    def advance(self, heads: Heads, groups: list[Group], rule: Rule) -> None:
        """One layer further."""
        self.tokens = grouped_step(self.tokens, heads, groups, rule)
        finite = torch.isfinite(self.tokens).all(dim=-1).all(dim=-1)
        self.right &= finite
        self.tokens = torch.where(finite[:, None, None], self.tokens, 0.0)

    def floors(self) -> list[OrdinaryFloor]:
        """One verdict per sample."""
        return [
            OrdinaryFloor(int(layer), float(log10_mu), not bool(right))
            for layer, log10_mu, right in zip(self.layer, self.log10_mu, self.right, strict=True)
        ]
