"""One layer in ordinary arithmetic: its rule, where tokens start, a step, a full block at initialisation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import final

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from rankfall.dynamics.mixing import SampleGroup
from rankfall.dynamics.weights import generator_for, take_heads
from rankfall.errors import require, require_count, require_one_of
from rankfall.masks import Mask
from rankfall.mechanism.heads import Heads, attention
from rankfall.norms import PLACEMENTS, NoNorm, Norm, Placement, place
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class Rule:
    """post: X' = norm(residual X + A X W_V); pre: X' = residual X + A norm(X) W_V (A computed from norm(X) too);
    peri: X' = residual X + norm(A norm(X) W_V)."""

    norm: Norm = field(default_factory=NoNorm)
    placement: Placement = "post"
    residual: float = 0.0

    def __post_init__(self) -> None:
        require_one_of("a placement", self.placement, PLACEMENTS)
        require(
            math.isfinite(self.residual),
            required="a finite residual weight",
            got=self.residual,
            remedy="0 for none, 1 for a usual skip connection",
        )

    def at(self, layer: int) -> Rule:
        """The rule of that layer, the first of which is 0."""
        return replace(self, norm=self.norm.at(layer + 1)) if self.norm.by_depth else self


PURE_ATTENTION = Rule()


def random_tokens(seeds: Sequence[int], n: int, d: int) -> Float[Tensor, "b n d"]:
    """Tokens uniform on the unit sphere, one matrix per seed."""
    require_count("the number of tokens", n)
    require_count("the width", d)
    drawn = [torch.randn(n, d, generator=generator_for(seed, 0), dtype=torch.float64) for seed in seeds]
    tokens = torch.stack(drawn)
    return tokens / torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)


def counterexample_tokens(seeds: Sequence[int], n: int, d: int) -> Float[Tensor, "b n d"]:
    """Two tokens in the basin of the rank-2 equilibrium of the counterexample's value matrix [[1, w], [0, 1]], w = 2.

    Token 1 tends to (0, 1) like 1/(w t); token 2 tends to (-1/w, -sqrt(1 - 1/w^2)) from an arc around that point.
    """
    require(
        n == d == 2,
        required="two tokens of width 2 for the counterexample",
        got=f"{n} tokens of width {d}",
        remedy="give --tokens 2 --dim 2, or build larger ones with `rankfall equilibrium`",
    )
    spread = torch.stack([torch.rand(2, generator=generator_for(seed, 0), dtype=torch.float64) for seed in seeds])
    first = torch.pi / 2 - 0.2 * spread[:, 0]
    second = torch.pi + torch.pi / 3 + 0.3 * (2 * spread[:, 1] - 1)
    angles = torch.stack([first, second], dim=-1)
    return torch.stack([angles.cos(), angles.sin()], dim=-1)


def step(tokens: Tokens, heads: Heads, mask: Mask | Tensor | None = None, rule: Rule = PURE_ATTENTION) -> Tokens:
    """The layer as the rule says it; (..., n, d) to (..., n, d).

    The weights may carry batch axes of their own, which broadcast against those of the tokens. Once tokens agree
    to machine precision this shows rounding noise; `split_step` does not.
    """
    return place(
        rule.norm,
        lambda x: attention(heads, x, mask=mask, validate=False),
        tokens,
        rule.placement,
        rule.residual,
    )


def grouped_step(tokens: Tokens, heads: Heads, groups: list[SampleGroup], rule: Rule = PURE_ATTENTION) -> Tokens:
    """The same for a (b, n, d) batch whose samples attend under different masks."""
    out = torch.empty_like(tokens)
    for group in groups:
        if group.index is None:
            return step(tokens, heads, group.mixer.pattern, rule)
        out[group.index] = step(tokens[group.index], take_heads(heads, group.index), group.mixer.pattern, rule)
    return out


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


def full_block(
    tokens: Tokens, heads: Heads, feed_forward: FeedForward, groups: list[SampleGroup], rule: Rule
) -> Tokens:
    """Attention and feed-forward sub-layers, each as the rule says; rounding noise below 1e-15."""
    attended = grouped_step(tokens, heads, groups, rule)
    return place(rule.norm, feed_forward, attended, rule.placement, rule.residual)
