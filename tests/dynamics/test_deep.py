"""Deep runs, in which scores have died away and layers only average."""

from __future__ import annotations

import math

import pytest
import torch

from rankfall.dynamics.mixing import MaskPlan, Mixer
from rankfall.dynamics.split import split
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import Rule, random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, GivenWeights, WeightRecipe
from rankfall.masks import parse_mask, parse_schedule
from rankfall.mechanism.heads import Heads

# log mu over hundreds of layers, relative: each route rounds in its own way.
TOLERANCE = 1e-12


@pytest.mark.parametrize(
    ("mask", "layers", "digits"), [("causal", 330, 140), ("complete", 8, 2200), ("prefix:2", 120, 120)]
)
def test_deep_simulation_agrees_with_arbitrary_precision(exact, drawn, mask, layers, digits) -> None:
    tokens, heads = drawn(1)
    expected = torch.tensor(exact(tokens, heads, parse_schedule(mask), Rule(), layers, digits), dtype=torch.float64)
    done = run_layers(tokens[None], GivenWeights((heads,)), parse_mask(mask), layers, measures=(), ordinary=False)
    finite = expected > -2.302 * (digits - 20)
    assert float(expected[finite].min()) < -60
    torch.testing.assert_close(done.log_mu[finite, 0], expected[finite], rtol=TOLERANCE, atol=5e-11)


def test_thinned_run_is_the_whole_run_with_layers_left_out() -> None:
    start, weights, mask = random_tokens([0, 1], 6, 4), DrawnWeights(WeightRecipe(4), [0, 1]), parse_mask("causal")
    shares: list[float] = []
    whole = run_layers(start, weights, mask, 200, keep_tokens=True, progress=lambda what, share: shares.append(share))
    assert shares == [layer / 200 for layer in range(1, 201)]
    thin = run_layers(start, weights, mask, 200, thin=70, keep_tokens=True)
    assert thin.layers == (0, 70, 140, 200)
    rows = list(thin.layers)
    for name, column in thin.columns.items():
        torch.testing.assert_close(column, whole.columns[name][rows], rtol=TOLERANCE, atol=TOLERANCE)
    assert whole.kept.shape == (201, 2, 6, 4)
    torch.testing.assert_close(thin.kept, whole.kept[rows], rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("value", [1e-25, 1e-70])
def test_vanishing_values_do_not_underflow(value) -> None:
    """Ten layers of 10^-70 leave float64, their logarithm does not."""
    one = torch.eye(2, dtype=torch.float64)[None]
    start = torch.tensor([[[1.0, 1.0], [1.0, 2.0], [3.0, 0.0]]], dtype=torch.float64)
    plan = MaskPlan(parse_mask("causal"), 1, 3)
    state = split(start, plan.reference())
    kept = split(start, plan.reference())
    for layer in range(10):
        state = split_step(state, Heads(0 * one, one, value * one), plan.at(layer))
        kept = split_step(kept, Heads(0 * one, one, one), plan.at(layer))
    shrunk = 10 * math.log(value)
    torch.testing.assert_close(state.log_mu(), kept.log_mu() + shrunk, rtol=TOLERANCE, atol=TOLERANCE)
    torch.testing.assert_close(state.log_size, kept.log_size + shrunk, rtol=TOLERANCE, atol=TOLERANCE)


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
