"""Stretches of averaging layers, measured together: the same as layer by layer, ended where scores are seen."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from rankfall.dynamics.mixing import MaskPlan, Mixer
from rankfall.dynamics.split import Split, split
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.stepper import Stepper
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, GivenWeights, WeightRecipe
from rankfall.masks import parse_mask, parse_schedule
from rankfall.mechanism.heads import Heads

# log mu over hundreds of layers, relative: each route rounds in its own way.
TOLERANCE = 1e-12


def stepper_of(weights, masks, n, batch, layers):
    return Stepper(weights, MaskPlan(masks, batch, n), Rule(), layers)


def settled(weights, masks, n, d, batch, layers=400) -> tuple[Split, MaskPlan, int]:
    """Tokens led layer by layer to where a stretch may begin, at the start of the masks' period."""
    plan = MaskPlan(masks, batch, n)
    state = split(random_tokens(range(batch), n, d), plan.reference())
    for layer in range(layers):
        if float(state.log_ratio.max()) < -60 and layer % plan.period == 0:
            return state, plan, layer
        state = split_step(state, weights.at(layer), plan.at(layer))
    raise AssertionError("the tokens did not settle")


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("mask", ["complete", "causal", "window:3", "causal+complete"])
def test_stretch_is_the_same_as_layer_by_layer(mask, heads, batch) -> None:
    n, d = 6, 4
    weights = DrawnWeights(WeightRecipe(d, heads=heads), range(batch))
    state, plan, layer = settled(weights, parse_schedule(mask), n, d, batch)
    stepper = Stepper(weights, plan, Rule(), layer + 12)
    states = stepper.advance(layer, state).states
    assert states.batch == 12 * batch
    for place in range(12):
        state = split_step(state, weights.at(layer), plan.at(layer + place))
        one = states.take(slice(place * batch, (place + 1) * batch))
        torch.testing.assert_close(one.log_mu(), state.log_mu(), rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(one.log_size, state.log_size, rtol=TOLERANCE, atol=TOLERANCE)
        torch.testing.assert_close(one.common, state.common, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(one.residual, state.residual, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(one.residual.abs().amax(dim=(1, 2)), torch.ones(batch, dtype=torch.float64))


@pytest.mark.parametrize(
    ("mask", "layers", "digits"), [("causal", 330, 140), ("complete", 8, 2200), ("prefix:2", 120, 120)]
)
def test_simulation_with_stretches_agrees_with_arbitrary_precision(exact, drawn, mask, layers, digits) -> None:
    tokens, heads = drawn(1)
    expected = torch.tensor(exact(tokens, heads, parse_schedule(mask), Rule(), layers, digits), dtype=torch.float64)
    done = run_layers(tokens[None], GivenWeights((heads,)), parse_mask(mask), layers, measures=(), ordinary=False)
    finite = expected > -2.302 * (digits - 20)
    assert float(expected[finite].min()) < -60
    torch.testing.assert_close(done.log_mu[finite, 0], expected[finite], rtol=TOLERANCE, atol=5e-11)


def test_thinned_kept_and_measured_as_layer_by_layer() -> None:
    start, weights, mask = random_tokens([0, 1], 6, 4), DrawnWeights(WeightRecipe(4), [0, 1]), parse_mask("causal")
    shares = [0.0]
    whole = run_layers(start, weights, mask, 200, keep_tokens=True, progress=lambda what, share: shares.append(share))
    assert shares[-1] == 1
    assert max(b - a for a, b in pairwise(shares)) * 200 > 10, "no stretch was taken"
    thin = run_layers(start, weights, mask, 200, thin=70, keep_tokens=True)
    assert thin.layers == (0, 70, 140, 200)
    rows = list(thin.layers)
    for name, column in thin.columns.items():
        torch.testing.assert_close(column, whole.columns[name][rows], rtol=TOLERANCE, atol=TOLERANCE)
    assert whole.kept.shape == (201, 2, 6, 4)
    torch.testing.assert_close(thin.kept, whole.kept[rows], rtol=TOLERANCE, atol=TOLERANCE)


def test_new_weights_in_every_layer() -> None:
    layers = tuple(DrawnWeights(WeightRecipe(3), [seed]).at(0) for seed in range(5))
    start, weights, mask = random_tokens([0], 5, 3), GivenWeights(layers), parse_mask("causal")
    done = run_layers(start, weights, mask, 150, measures=(), ordinary=False)
    plan = MaskPlan(mask, 1, 5)
    state = split(start, plan.reference())
    for layer in range(150):
        state = split_step(state, weights.at(layer), plan.at(layer))
    assert float(done.log_mu[-1, 0]) == pytest.approx(float(state.log_mu()), rel=TOLERANCE)


def uniform(value: float, d: int = 2) -> Heads:
    """Weak queries and keys, values a multiple of the identity."""
    one = torch.eye(d, dtype=torch.float64)[None]
    return Heads(1e-3 * one, one, value * one)


def test_growing_tokens_end_a_stretch_before_scores_return() -> None:
    """Values of 30 blow the tokens up faster than averaging draws them together: scores come back into sight."""
    plan = MaskPlan(parse_mask("causal"), 1, 3)
    start = split(torch.tensor([[[1.0, 1.0], [2.0, 0.0], [0.0, 0.0]]], dtype=torch.float64), plan.reference())
    state = replace(start, log_ratio=start.log_ratio - 50)
    weights = GivenWeights((uniform(30.0),))
    states = Stepper(weights, plan, Rule(), 60).advance(0, state).states
    assert 1 < states.batch < 20
    loud = 2 * states.log_size + states.log_ratio
    assert float(loud[:-1].max()) < -30
    for place in range(states.batch):
        state = split_step(state, weights.at(0), plan.at(0))
        torch.testing.assert_close(states.log_mu()[place], state.log_mu()[0], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("value", [1e-25, 1e-70])
def test_vanishing_values_do_not_underflow_within_a_stretch(value) -> None:
    """Ten layers of 10^-70 leave float64, their logarithm does not."""
    heads = replace(uniform(value), query=torch.zeros(1, 2, 2, dtype=torch.float64))
    start = torch.tensor([[[1.0, 1.0], [1.0, 2.0], [3.0, 0.0]]], dtype=torch.float64)
    settled_state = split(start, torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64))
    state = replace(settled_state, log_ratio=settled_state.log_ratio - 100)
    stepper = stepper_of(GivenWeights((heads,)), parse_mask("causal"), 3, 1, 10)
    one_by_one, layer = state, 0
    while layer < 10:
        states = stepper.advance(layer, state).states
        layer, state = layer + states.batch, states.take(slice(-1, None))
    for _ in range(10):
        one_by_one = split_step(one_by_one, heads, stepper.plan.at(0))
    torch.testing.assert_close(state.log_mu(), one_by_one.log_mu(), rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(state.log_size, one_by_one.log_size, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("distance", [10.0, 40.0, 80.0])
def test_attention_all_but_concentrated_in_one_token(exact, drawn, distance) -> None:
    """Tokens far from the origin: rows of the attention matrix agree to the last digit, and still differ."""
    for seed in range(3):
        tokens, heads = drawn(seed, n=8, d=4)
        tokens = tokens + distance * torch.eye(4, dtype=torch.float64)[0]
        masks = parse_schedule("complete")
        expected = exact(tokens, heads, masks, Rule(), 2, 400)
        plan = MaskPlan(masks, 1, 8)
        state = split(tokens[None], plan.reference())
        for layer in range(2):
            state = split_step(state, heads, plan.at(layer))
            assert float(state.log_mu()) == pytest.approx(expected[layer + 1], abs=5e-11)


@pytest.mark.parametrize("name", ["window:4", "dilated:3:2", "causal-window:5"])
def test_averages_by_blocks_and_by_a_sparse_matrix_agree(name) -> None:
    values = random_tokens([0, 1], 203, 3)
    by_matrix = Mixer((parse_mask(name),), 203, torch.device("cpu"))
    by_blocks = Mixer((parse_mask(name),), 203, torch.device("cpu"))
    weights = by_blocks._allowed.double()
    by_blocks.__dict__["_average_in_blocks"] = weights / weights.sum(dim=-1, keepdim=True)
    torch.testing.assert_close(by_blocks.average(values), by_matrix.average(values), rtol=1e-13, atol=1e-13)
    torch.testing.assert_close(by_blocks.average(values[0]), by_matrix.average(values[0]), rtol=1e-13, atol=1e-13)
