"""B-thm1 as numbers: how fast mu must fall when every allowed attention weight is at least eps.

If all allowed entries are >= eps and some token c reaches all others within rho edges, a product of rho attention
matrices has its column c >= eps^rho, so that the range of each coordinate shrinks by 1 - eps^rho. Hence

    mu(X_t) <= sqrt(N / 2) (1 - eps^rho)^floor(t / rho) prod ||W_V||_2 mu(X_0).

For a schedule of period p every edge of the union graph occurs once per period and tokens wait on their self-loops,
so rho p layers make up one contraction: rho becomes rho p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor


@final
@dataclass(frozen=True)
class ContractionBound:
    """(1 - eps^steps)^floor(t / steps) times value_norm^t; `steps` is rho times the schedule's period."""

    least_weight: float
    steps: int
    tokens: int
    value_norm: float = 1.0

    @property
    def log_rate(self) -> float:
        """Natural logarithm of the factor per layer, right even where the factor rounds to 1."""
        return self._log_contraction / max(1, self.steps) + math.log(self.value_norm)

    @property
    def rate(self) -> float:
        """The factor per layer."""
        return math.exp(self.log_rate)

    @property
    def _log_contraction(self) -> float:
        if self.steps == 0 or self.least_weight >= 1:
            return -math.inf
        # eps^steps may underflow; log1p(-x) is -x then, which is what we want to the last digit.
        return math.log1p(-(self.least_weight**self.steps)) if self.least_weight > 0 else 0.0

    def log_gap(self) -> float:
        """log(eps^steps / steps): how far the rate is from 1, for when that is below rounding (no value norm)."""
        if self.least_weight <= 0:
            return -math.inf
        return self.steps * math.log(self.least_weight) - math.log(max(1, self.steps))

    def log_mu(self, layers: Tensor, start: Tensor) -> Tensor:
        """The bound on log mu after so many layers, by the sharper form: (sqrt(N)/2) sqrt(sum_j range_j(X_0)^2).

        `start` are the tokens (n, d) at layer 0.
        """
        ranges = start.amax(dim=-2) - start.amin(dim=-2)
        constant = 0.5 * math.log(self.tokens) - math.log(2) + torch.linalg.vector_norm(ranges).log()
        blocks = torch.div(layers, max(1, self.steps), rounding_mode="floor").double()
        shrink = torch.where(blocks > 0, blocks * self._log_contraction, 0.0)
        return constant + shrink + layers.double() * math.log(self.value_norm)
