"""A full transformer block at initialisation: attention, feed-forward layer, residuals, norms, in plain float64."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rankfall.attention import Heads
from rankfall.attention.norms import place
from rankfall.dynamics.mixing import Group
from rankfall.dynamics.rule import Rule
from rankfall.dynamics.step import grouped_step
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class FeedForward:
    """relu(x W_1) W_2, without biases."""

    inner: Float[Tensor, "d f"]
    outer: Float[Tensor, "f d"]

    @classmethod
    def random(cls, width: int, generator: Generator, expansion: int = 4) -> FeedForward:
        """Variances that keep the size of a token: 2 / d in front of the ReLU, 1 / (expansion d) behind it."""
        hidden = expansion * width
        inner = torch.randn(width, hidden, generator=generator, dtype=torch.float64) * (2 / width) ** 0.5
        outer = torch.randn(hidden, width, generator=generator, dtype=torch.float64) * hidden**-0.5
        return cls(inner, outer)

    def __call__(self, tokens: Tokens) -> Tokens:
        return torch.relu(tokens @ self.inner) @ self.outer


def full_block(tokens: Tokens, heads: Heads, feed_forward: FeedForward, groups: list[Group], rule: Rule) -> Tokens:
    """Attention and feed-forward sub-layers, each as the rule says; rounding noise below 1e-15."""
    attended = grouped_step(tokens, heads, groups, rule)
    return place(rule.norm, feed_forward, attended, rule.placement, rule.residual)
