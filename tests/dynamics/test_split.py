"""Split tokens: back and forth, measures, sums, and the same layer as the plain route while that can still tell."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankfall.catalogue import MASKS, NORMS
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.split import add, split
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import Rule, random_tokens, step
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import parse_mask
from rankfall.measures.base import measure


def test_tokens_come_back_and_mu_is_mu() -> None:
    tokens = 1e-200 * random_tokens([0, 1], 5, 3) + torch.tensor([1e-199, 0.0, 3e-200])
    state = split(tokens)
    # e^K carries the rounding of K, about 460 here.
    torch.testing.assert_close(state.tokens(), tokens, rtol=1e-12, atol=0)
    found = measure(tokens, ["mu", "relative_mu"])
    torch.testing.assert_close(state.log_mu().exp(), found["mu"], rtol=1e-12, atol=0)
    torch.testing.assert_close(state.log_relative_mu().exp(), found["relative_mu"], rtol=1e-12, atol=0)


def test_equal_and_zero_tokens_have_no_residual() -> None:
    for tokens in (torch.ones(1, 4, 2, dtype=torch.float64), torch.zeros(1, 4, 2, dtype=torch.float64)):
        state = split(tokens)
        assert float(state.log_mu()) == -math.inf
        assert float(state.log_relative_mu()) == -math.inf
        assert torch.equal(state.tokens(), tokens)


def test_sum_keeps_the_smaller_residual() -> None:
    one, other = split(random_tokens([0], 4, 3)), split(1e-30 * random_tokens([1], 4, 3))
    difference = add(add(one, other), one, -1.0)
    assert float(add(one, one, -1.0).log_mu()) == -math.inf
    assert float(difference.log_mu()) < -30
    torch.testing.assert_close(add(one, one, 2.0).tokens(), 3 * one.tokens())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    mask=st.sampled_from([mask for kind in MASKS for mask in kind.examples()]),
    norm=st.sampled_from([norm for kind in NORMS for norm in kind.examples()]),
    placement=st.sampled_from(["post", "pre"]),
    residual=st.sampled_from([0.0, 0.7]),
    heads=st.integers(1, 3),
    query_key=st.sampled_from(["random", "xavier", "orthogonal", "zero"]),
    value=st.sampled_from(["identity", "orthogonal", "gaussian"]),
    seed=st.integers(0, 5),
)
def test_same_map_as_the_plain_step(mask, norm, placement, residual, heads, query_key, value, seed) -> None:
    rule = Rule(norm, placement, residual)
    weights = DrawnWeights(WeightRecipe(6, query_key, value, heads), [seed], [0.7])
    plain, plan = random_tokens([seed], 7, 6), MaskPlan(mask, 1, 7)
    state = split(plain, plan.reference())
    for layer in range(3):
        plain = step(plain, weights.at(layer), mask, rule)
        state = split_step(state, weights.at(layer), plan.at(layer), rule)
        torch.testing.assert_close(state.tokens(), plain, rtol=1e-9, atol=1e-12)


def test_root_is_the_reference_where_not_all_are_roots() -> None:
    assert MaskPlan(parse_mask("causal"), 2, 3).reference().tolist() == [[1, 0, 0], [1, 0, 0]]
    assert MaskPlan(parse_mask("window:1"), 1, 4).reference().tolist() == [[0.25] * 4]
    with pytest.raises(ValueError, match="one mask, or one for each of the 3 samples"):
        MaskPlan([parse_mask("causal")] * 2, 3, 4)
