"""The attention matrices that a simulation passes through, and what their products prove."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from rankfall.attention import attention_weights
from rankfall.attention.layer import project
from rankfall.attention.masks import Mask, MaskSchedule
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.rule import PURE_ATTENTION, Rule
from rankfall.dynamics.split import split
from rankfall.dynamics.split_norm import split_norm
from rankfall.dynamics.split_step import split_step
from rankfall.dynamics.weights import Weights
from rankfall.theory.ergodicity import Certificate, certify


def attention_matrices(
    tokens: Tensor, weights: Weights, masks: Mask | MaskSchedule, layers: int, rule: Rule = PURE_ATTENTION
) -> Iterator[Tensor]:
    """The (n, n) attention of one sample (1, n, d), averaged over heads, layer by layer."""
    n = tokens.shape[-2]
    plan = MaskPlan(masks, 1, n, tokens.device)
    schedule = masks if isinstance(masks, MaskSchedule) else MaskSchedule((masks,))
    state = split(tokens, plan.reference())
    for layer in range(layers):
        heads = weights.at(layer)
        asked = (split_norm(state, rule.norm) if rule.placement == "pre" else state).tokens()
        query = project(asked, heads.query, heads.query_bias)
        key = project(asked, heads.key, heads.key_bias)
        yield attention_weights(query, key, schedule.at(layer), scale=heads.scale)[0].mean(dim=0)
        state = split_step(state, heads, plan.at(layer), rule)


def certificate(
    tokens: Tensor, weights: Weights, masks: Mask | MaskSchedule, layers: int, rule: Rule = PURE_ATTENTION
) -> Certificate | None:
    """Contraction factors proved by the products of the attention matrices that occurred."""
    return certify(attention_matrices(tokens, weights, masks, layers, rule))
