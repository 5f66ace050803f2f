"""What is run beside a simulation: the ordinary route, and the products of attention that prove a rate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from rankfall.dynamics.mixing import MaskPlan, SampleGroup
from rankfall.dynamics.split import split, split_norm
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import PURE_ATTENTION, Rule, grouped_step
from rankfall.dynamics.weights import Weights
from rankfall.masks import Mask, MaskSchedule
from rankfall.measures.base import measure
from rankfall.mechanism.attend import attention_weights
from rankfall.mechanism.heads import Heads, project
from rankfall.theory.ergodicity import Certificate, certify

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
        self.layer = torch.where(self.right, layer, self.layer)
        self.log10_mu = torch.where(self.right, exact, self.log10_mu)

    def advance(self, heads: Heads, groups: list[SampleGroup], rule: Rule) -> None:
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


def attention_matrices(
    tokens: Tensor, weights: Weights, masks: Mask | MaskSchedule, layers: int, rule: Rule = PURE_ATTENTION
) -> Iterator[Tensor]:
    """The (n, n) attention of one sample (1, n, d), averaged over heads, layer by layer; without any sink."""
    n = tokens.shape[-2]
    plan = MaskPlan(masks, 1, n, tokens.device)
    schedule = MaskSchedule.of(masks)
    state = split(tokens, plan.reference())
    for layer in range(layers):
        heads = weights.at(layer)
        own = rule.at(layer)
        normed = (state if own.placement == "post" else split_norm(state, own.norm)).tokens()
        query = project(normed, heads.query, heads.query_bias)
        key = project(normed, heads.key, heads.key_bias)
        yield attention_weights(query, key, schedule.at(layer), scale=heads.scale)[0].mean(dim=0)
        state = split_step(state, heads, plan.at(layer), own)


def certificate(
    tokens: Tensor, weights: Weights, masks: Mask | MaskSchedule, layers: int, rule: Rule = PURE_ATTENTION
) -> Certificate | None:
    """Contraction factors proved by the products of the attention matrices that occurred."""
    return certify(attention_matrices(tokens, weights, masks, layers, rule))
