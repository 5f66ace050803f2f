"""Fitted rates on curves whose law is known; drawn weights."""

from __future__ import annotations

import math

import pytest
import torch

from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.ordinary import certificate
from rankfall.dynamics.rate import measured_rate
from rankfall.dynamics.step import FeedForward, Rule, full_block, random_tokens
from rankfall.dynamics.weights import ALL_QUERY_KEYS, ALL_VALUES, DrawnWeights, WeightRecipe
from rankfall.errors import RequestError
from rankfall.masks import parse_mask


def test_straight_line_with_outliers() -> None:
    layers = list(range(201))
    values = [math.log(0.9) * layer for layer in layers]
    values[150] += 5
    values[180] -= 9
    fit = measured_rate(layers, values)
    assert fit.rate == pytest.approx(0.9, rel=1e-9)
    assert fit.low <= fit.rate <= fit.high
    assert (fit.first_layer, fit.last_layer) == (100, 200)


def test_transient_is_left_out() -> None:
    layers = list(range(301))
    values = [math.log(0.5) * layer + 8 * math.exp(-layer / 5) for layer in layers]
    assert measured_rate(layers, values).rate == pytest.approx(0.5, rel=1e-6)


def test_cubic_law() -> None:
    values = [0.3]
    for _ in range(8):
        values.append(3 * values[-1] - 1.7)
    fit = measured_rate(range(len(values)), values)
    assert fit.law == "cubic"
    assert fit.order == pytest.approx(3, abs=0.05)


def test_flat_empty_and_equal() -> None:
    assert measured_rate(range(50), [0.2] * 50).law == "none"
    assert measured_rate([0, 1], [0.0, -1.0]) is None
    assert measured_rate(range(6), [0.0, *[-math.inf] * 5]).law == "equal"


@pytest.mark.parametrize("value", ALL_VALUES)
def test_value_maps(value) -> None:
    drawn = DrawnWeights(WeightRecipe(2, value=value), [3]).at(0).value[0, 0]
    if value in ("identity", "orthogonal"):
        torch.testing.assert_close(drawn @ drawn.mT, torch.eye(2, dtype=torch.float64))
    if value == "counterexample":
        assert drawn.tolist() == [[1, 2], [0, 1]]
    assert torch.isfinite(drawn).all()


@pytest.mark.parametrize("query_key", ALL_QUERY_KEYS)
def test_query_key_variance(query_key) -> None:
    drawn = DrawnWeights(WeightRecipe(64, query_key), [0]).at(0).query
    expected = 0.0 if query_key == "zero" else 1 / 64
    assert float(drawn.square().mean()) == pytest.approx(expected, rel=0.05, abs=1e-12)


def test_samples_do_not_depend_on_their_company() -> None:
    recipe = WeightRecipe(4, per_layer=True, heads=2)
    together, alone = DrawnWeights(recipe, [5, 6]), DrawnWeights(recipe, [6])
    assert torch.equal(together.at(3).query[1], alone.at(3).query[0])
    assert not torch.equal(alone.at(3).query, alone.at(4).query)
    shared = DrawnWeights(WeightRecipe(4), [6])
    assert shared.at(0) is shared.at(99)


def test_wrong_recipes() -> None:
    with pytest.raises(RequestError, match="value weights among identity, orthogonal"):
        WeightRecipe(4, value="unitary")
    with pytest.raises(RequestError, match="tokens of width 2 for the counterexample"):
        DrawnWeights(WeightRecipe(4, value="counterexample"), [0]).at(0)
    with pytest.raises(RequestError, match="the rank of a head to be"):
        WeightRecipe(4, rank=5)
    with pytest.raises(RequestError, match="one positive temperature"):
        DrawnWeights(WeightRecipe(4), [0], [0.0])


def test_certificate_covers_the_simulated_fall() -> None:
    """Coefficients of the attention matrices that occurred bound mu from above, whatever the mask."""
    from rankfall.dynamics.trajectory import run_layers

    for name in ("causal", "window:2", "star", "random:0.4:1"):
        mask, weights, start = parse_mask(name), DrawnWeights(WeightRecipe(4), [1]), random_tokens([1], 8, 4)
        proved = certificate(start, weights, mask, 40)
        done = run_layers(start, weights, mask, 40, measures=(), ordinary=False)
        fall = float(done.log_mu[-1, 0] - done.log_mu[0, 0])
        assert fall <= 40 * math.log(proved.spectral) + 1e-9
        assert 0 < proved.least_weight < 1


def test_full_block_changes_tokens_and_keeps_them_normed() -> None:
    from rankfall.norms import UnitNorm

    weights = DrawnWeights(WeightRecipe(4), [0])
    groups = MaskPlan(parse_mask("causal"), 1, 5).at(0)
    feed_forward = FeedForward.random(4, torch.Generator().manual_seed(0))
    tokens = random_tokens([0], 5, 4)
    out = full_block(tokens, weights.at(0), feed_forward, groups, Rule(UnitNorm(), residual=1.0))
    torch.testing.assert_close(torch.linalg.vector_norm(out, dim=-1), torch.ones(1, 5, dtype=torch.float64))
    assert float((out - tokens).abs().max()) > 0.01
