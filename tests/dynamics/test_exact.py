"""The split route against arbitrary precision: every norm, placement, residual and mask, far below epsilon."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import pytest
import torch

from rankfall.catalogue import MASKS
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.split import split
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import Rule
from rankfall.masks import MaskSchedule, parse_mask, parse_schedule
from rankfall.mechanism.heads import Heads
from rankfall.norms import LayerNorm, NoNorm, RMSNorm, UnitNorm

# log mu, absolute: digits are lost one by one over hundreds of layers, never all at once.
TOLERANCE = 5e-11

SAMPLES = {
    "complete": "complete",
    "causal": "causal",
    "window": "window:1",
    "causal-window": "causal-window:1",
    "dilated": "dilated:1:2",
    "global-window": "global-window:1:1",
    "prefix": "prefix:2",
    "star": "star",
    "out-star": "out-star",
    "in-star": "in-star",
    "ring": "ring:1",
    "block-diagonal": "block-diagonal:2",
    "random": "random:0.4:3",
}


def largest_error(exact, tokens, heads, masks, rule, layers, digits) -> tuple[float, float]:
    expected = exact(tokens, heads, masks, rule, layers, digits)
    assert min(expected) > -2.302 * (digits - 20), "the reference ran out of digits"
    plan = MaskPlan(masks, 1, tokens.shape[0])
    state, worst = split(tokens[None], plan.reference()), 0.0
    for layer in range(layers):
        state = split_step(state, heads, plan.at(layer), rule)
        worst = max(worst, abs(float(state.log_mu()) - expected[layer + 1]))
    return worst, expected[-1] / 2.302585


@pytest.mark.parametrize(
    ("mask", "rule", "layers", "digits", "reached"),
    [
        ("causal", Rule(), 1030, 340, -305),
        ("window:1", Rule(), 150, 60, -10),
        ("causal-window:1", Rule(), 250, 100, -60),
        ("complete", Rule(), 7, 700, -590),
        ("causal", Rule(UnitNorm()), 200, 90, -55),
        ("window:1", Rule(UnitNorm()), 120, 60, -5),
        ("complete", Rule(UnitNorm()), 7, 450, -350),
        ("causal", Rule(LayerNorm()), 100, 160, -100),
        ("causal", Rule(LayerNorm(0.1)), 80, 160, -80),
        ("complete", Rule(LayerNorm()), 6, 1600, -80),
        ("causal", Rule(RMSNorm()), 120, 70, -30),
        ("causal", Rule(residual=0.5), 80, 60, 20),
        ("causal", Rule(UnitNorm(), residual=1.0), 200, 90, -50),
        ("complete", Rule(UnitNorm(), residual=1.0), 200, 90, -50),
        ("causal", Rule(UnitNorm(), "pre", 1.0), 80, 60, 2),
        ("complete", Rule(UnitNorm(), "pre"), 6, 450, -110),
        ("causal+complete", Rule(UnitNorm()), 8, 450, -50),
        ("window:1+causal", Rule(), 100, 90, -20),
    ],
    ids=str,
)
def test_agrees_with_arbitrary_precision(exact, drawn, mask, rule, layers, digits, reached) -> None:
    tokens, heads = drawn(1)
    worst, last = largest_error(exact, tokens, heads, parse_schedule(mask), rule, layers, digits)
    assert worst < TOLERANCE
    assert last < reached


def test_every_mask_has_a_sample() -> None:
    assert set(SAMPLES) == {kind.name for kind in MASKS}


@pytest.mark.parametrize("name", SAMPLES.values())
@pytest.mark.parametrize("norm", [NoNorm(), UnitNorm()], ids=lambda norm: norm.name)
def test_every_mask(exact, drawn, name, norm) -> None:
    tokens, heads = drawn(2)
    layers, digits = (5, 300) if name == "complete" else (40, 80)
    worst, _ = largest_error(exact, tokens, heads, MaskSchedule((parse_mask(name),)), Rule(norm), layers, digits)
    assert worst < TOLERANCE


@pytest.mark.parametrize("mask", ["complete", "causal"])
def test_several_heads_with_biases_and_output(exact, drawn, mask, generator) -> None:
    tokens, heads = drawn(3, heads=2)
    options = {"generator": generator, "dtype": torch.float64}
    heads = replace(
        heads,
        query_bias=torch.randn(2, 3, **options),
        value_bias=torch.randn(2, 3, **options),
        output=torch.randn(2, 3, 3, **options) / 3,
        scale=0.4,
    )
    layers, digits = (6, 700) if mask == "complete" else (60, 90)
    worst, last = largest_error(exact, tokens, heads, parse_schedule(mask), Rule(UnitNorm()), layers, digits)
    assert worst < TOLERANCE
    assert last < -15


def test_one_way_chains_do_not_feed_on_rounding() -> None:
    """Uniform attention to the previous token: a Jordan chain of length 40, whose pseudo-eigenvalues reach 0.7.

    Whole numbers are the reference: scaled by 2 in every layer, x_i becomes x_i + x_{i-1} exactly.
    """
    n, layers = 40, 600
    whole = [(7 * i * i + 3 * i) % 11 for i in range(n)]
    tokens = torch.tensor(whole, dtype=torch.float64)[None, :, None]
    zero = torch.zeros(1, 1, 1, dtype=torch.float64)
    heads = Heads(zero, zero, torch.ones(1, 1, 1, dtype=torch.float64))
    plan = MaskPlan(parse_mask("causal-window:1"), 1, n)
    state = split(tokens, plan.reference())
    for _ in range(layers):
        state = split_step(state, heads, plan.at(0))
        whole = [2 * whole[0], *(a + b for a, b in zip(whole[1:], whole, strict=False))]
    total = sum(whole)
    squares = sum((n * entry - total) ** 2 for entry in whole)  # n^2 mu^2 4^layers, a whole number
    expected = float(mpmath.log(squares) / 2 - mpmath.log(n) - layers * mpmath.log(2))
    assert float(state.log_mu()) == pytest.approx(expected, abs=1e-9)
