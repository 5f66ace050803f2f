"""What constructions promise beyond their examples: orders, limits, needed parts, depth below one layer's bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.formulas import soft_error_asymptotic

from rankfall.constructions.base import sampled_error
from rankfall.constructions.full_rank_head import FullRankHead
from rankfall.constructions.linear_regime import LinearRegime
from rankfall.constructions.oscillating_sum import OscillatingSum
from rankfall.constructions.plane import EqualAngles, QuantisedQuery
from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.biased import breakpoints
from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.theory.targets import orthonormal_points, oscillating_breakpoints, uniform_sphere


@pytest.mark.parametrize(
    "construction", [LinearRegime(4, points=4), LinearRegime(4, points=4, mirrored=True)], ids=repr
)
def test_declared_order_in_the_gain(construction: LinearRegime) -> None:
    """The slope of log error against log gain is the declared order, within 0.35 (a few hundred errors per point)."""
    gains = np.array([1.0, 2.0, 4.0]) if construction.mirrored else np.array([0.1, 0.3, 1.0])
    wrong = [
        sampled_error(
            LinearRegime(4, points=4, gain=float(gain), mirrored=construction.mirrored), samples=40_000, seed=5
        ).wrong
        for gain in gains
    ]
    slope = np.polyfit(np.log(gains), np.log(wrong), 1)[0]
    assert abs(slope - construction.order) < 0.35


def test_alternating_sum_needs_its_constant_head() -> None:
    """Without head 0 the weights sum to zero and the sum of 2 d^2 heads is wrong on every sample."""
    construction = OscillatingSum(3)
    network = construction.build()
    whole = network.layers[0].heads
    assert whole.heads == 2 * 3**2 + 1
    assert whole.query_bias is not None
    without = Heads(whole.query[1:], whole.key[1:], whole.value[1:], query_bias=whole.query_bias[1:], scale=1.0)
    rng = torch.Generator().manual_seed(7)
    points, queries = orthonormal_points((500, 2, 3), rng), uniform_sphere((500, 1, 3), rng)
    tokens = torch.nn.functional.pad(queries, (0, 1))
    answer = attention(without, tokens, network.context_tokens(points), kind="hardmax")
    error = (answer - construction.target(points, queries)).square().sum(dim=(-1, -2))
    assert float(error.min()) == pytest.approx(1.0)


@pytest.mark.parametrize("temperature", [100.0, 1000.0])
def test_soft_oscillation_meets_its_asymptotic_form(temperature: float) -> None:
    """c * spacing = 8.6 and 86 at d=4: within 3 percent of the leading term."""
    construction = OscillatingSum(4, inverse_temperature=temperature)
    leading = soft_error_asymptotic(4, temperature)
    assert leading == pytest.approx(construction.predicted_error().mse, rel=0.03)


def test_theory_and_target_agree_on_the_breakpoints() -> None:
    assert np.allclose(oscillating_breakpoints(5).numpy() / math.sqrt(2), breakpoints(5), atol=1e-15)


def test_plane_limits() -> None:
    assert EqualAngles(1).predicted_error().mse == pytest.approx(0.4375)
    assert EqualAngles(10_000).predicted_error().mse == pytest.approx(5 / 32, rel=1e-6)
    assert [QuantisedQuery(h).predicted_error().mse for h in (2, 4, 8)] == [0.5, 0.25, 0.125]


def test_two_layers_go_below_the_bound_of_one() -> None:
    """A-thm7: depth escapes A-thm2. d + 1 rank-1 heads in two layers beat every d + 1 rank-1 heads in one."""
    d = 16
    floor = mse_floor(HeadClass(d, 1), d + 1).mse
    construction = LinearRegime(d, gain=0.01)
    network = construction.build()
    assert (network.rank, network.heads) == (1, d + 1)
    assert floor > 0.15
    assert sampled_error(construction, samples=2_000, seed=9).mse < 0.01 * floor


def test_infinite_temperature_prediction_is_a_limit() -> None:
    soft = [FullRankHead(8, inverse_temperature=c).predicted_error().mse for c in (1.0, 10.0, 100.0, 1e4)]
    assert soft == sorted(soft, reverse=True)
    assert soft[-1] < 1e-4
    assert FullRankHead(8, inverse_temperature=math.inf).predicted_error().mse == 0.0
