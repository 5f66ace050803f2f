"""The split route against arbitrary precision: every norm, placement, residual and mask, far below epsilon."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import mpmath
import pytest
import torch

from rankfall.catalogue import MASKS, NORMS
from rankfall.dynamics.experiment import Experiment, run
from rankfall.dynamics.mixing import MaskPlan
from rankfall.dynamics.split import split
from rankfall.dynamics.split_attention import split_step
from rankfall.dynamics.step import Rule
from rankfall.dynamics.tail import EQUAL_AT_START
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import GivenWeights, WeightRecipe
from rankfall.errors import RequestError
from rankfall.masks import MaskSchedule, parse_mask, parse_schedule
from rankfall.mechanism.heads import Heads
from rankfall.norms import PLACEMENTS, LayerNorm, NoNorm, Norm, RMSNorm, UnitNorm

# log mu, absolute: digits are lost one by one over hundreds of layers, never all at once.
TOLERANCE = 5e-11

# Where a norm has no exact arithmetic, float64 knows differences of this share of the tokens, to this tolerance.
ROUNDED_SHARE, ROUNDED_TOLERANCE = 1e-7, 1e-6
MASK_EXAMPLES = [mask for kind in MASKS for mask in kind.examples()]
NORM_EXAMPLES = [norm for kind in NORMS for norm in kind.examples()]


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


@pytest.mark.parametrize("mask", MASK_EXAMPLES, ids=str)
@pytest.mark.parametrize("norm", [NoNorm(), UnitNorm()], ids=str)
def test_every_mask(exact, drawn, mask, norm) -> None:
    tokens, heads = drawn(2)
    layers, digits = (5, 300) if mask.dense(len(tokens)).all() else (40, 80)
    worst, _ = largest_error(exact, tokens, heads, MaskSchedule((mask,)), Rule(norm), layers, digits)
    assert worst < TOLERANCE


@dataclass(frozen=True)
class Squashed(Norm):
    """A norm that is no scaling: x / (1 + |x|)."""

    name: ClassVar[str] = "squashed"
    meaning: ClassVar[str] = "tokens inside the unit ball"

    def normalise(self, tokens):
        return tokens / (1 + torch.linalg.vector_norm(tokens, dim=-1, keepdim=True))

    def reference(self, row):
        return [x / (1 + sum(y * y for y in row) ** 0.5) for x in row]


@pytest.mark.parametrize("norm", [*NORM_EXAMPLES, Squashed()], ids=str)
@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("residual", [0.0, 0.5])
def test_every_norm(exact, drawn, norm, placement, residual) -> None:
    tokens, heads = drawn(2)
    rule, masks = Rule(norm, placement, residual), parse_schedule("causal")
    expected = exact(tokens, heads, masks, rule, 30, 120)
    done = run_layers(tokens[None], GivenWeights((heads,)), masks, 30, rule, measures=())
    assert done.exact == norm.exact(tokens.shape[-1])
    if done.exact:
        told, tolerance = len(expected), TOLERANCE
    else:
        relative = done.columns["log10_relative_mu"][:, 0].tolist()
        told = next((layer for layer, share in enumerate(relative) if 10**share < ROUNDED_SHARE), len(expected))
        tolerance = ROUNDED_TOLERANCE
    assert told > 3
    assert done.log_mu[:told, 0].tolist() == pytest.approx(expected[:told], abs=tolerance)


def test_a_norm_without_exact_arithmetic_says_so_and_gives_no_rate_of_rounding() -> None:
    masks, recipe = (parse_schedule("causal"),), WeightRecipe(4, value="identity")
    told = {}
    for norm in (UnitNorm(), Squashed()):
        (told[norm],) = run(Experiment(masks, recipe, tokens=6, layers=200, rule=Rule(norm)))
    assert told[UnitNorm()].exact
    assert told[UnitNorm()].rates[0].last_layer == 200
    rounded = told[Squashed()]
    assert not rounded.exact
    assert rounded.rates[0].last_layer < 100
    assert not rounded.theorem.applies
    assert rounded.tail_rate is None


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


# Masks under which some key is seen by all tokens: there sharp attention can make all rows agree within one layer.
SHARED_KEY_MASKS = [mask for mask in MASK_EXAMPLES if mask.dense(8).all(dim=0).any()]


def sharp_run(exact, mask, temperature: float, seed: int, norm: Norm, layers: int = 3):
    """log mu by us, None where it was refused, and exactly, of eight tokens under very sharp attention."""
    generator = torch.Generator().manual_seed(seed)
    options = {"generator": generator, "dtype": torch.float64}
    tokens = torch.randn(8, 4, **options)
    query, key = torch.randn(2, 1, 4, 4, **options) / 2
    value = torch.linalg.qr(torch.randn(1, 4, 4, **options))[0]
    heads, masks, rule = Heads(query, key, value, scale=0.5 / temperature), MaskSchedule((mask,)), Rule(norm)
    expected = exact(tokens, heads, masks, rule, layers, 900)
    try:
        done = run_layers(tokens[None], GivenWeights((heads,)), masks, layers, rule, measures=(), ordinary=False)
    except RequestError as refusal:
        return (None if "sharp" in str(refusal) else []), expected
    return done.log_mu[:, 0].tolist(), expected


@pytest.mark.parametrize("mask", SHARED_KEY_MASKS, ids=str)
def test_sharp_attention_is_right_or_refused(exact, mask) -> None:
    """Down to a temperature of 1/256 mu may fall by tens of orders at once: never a wrong number."""
    told = 0
    for seed, temperature in enumerate(2.0**-power for power in (3, 5, 6, 7, 8, 8)):
        ours, expected = sharp_run(exact, mask, temperature, seed, RMSNorm())
        if ours is not None:
            told += 1
            # Sharp attention multiplies rounding by its scores, of several thousand, in every layer.
            assert ours == pytest.approx(expected, abs=1e-3)
    assert told >= 4


@pytest.mark.parametrize(
    ("mask", "temperature", "seed", "layer", "expected"),
    [("star", 1 / 64, 3, 6, -18.9426), ("star", 1 / 64, 3, 8, -19.7945)],
)
def test_an_abrupt_drop_is_followed(mask, temperature, seed, layer, expected) -> None:
    experiment = Experiment(
        (parse_schedule(mask),), WeightRecipe(8), 8, 8, Rule(RMSNorm()), temperature=temperature, seeds=(seed,)
    )
    (done,) = run(experiment)
    assert done.records[layer]["log10_mu"] == pytest.approx(expected, abs=1e-3)


def test_what_was_lost_in_an_abrupt_drop_is_not_forgotten_later() -> None:
    """The outer tokens of a star agree to 97 digits; their differences fall by 1/2 a layer, those to its centre by
    3/8, so that from layer 772 on the former are larger: exactly -384 at layer 900, where the latter have -400."""

    def sharp(layers: int) -> Experiment:
        masks, rule = (parse_schedule("star"),), Rule(RMSNorm())
        return Experiment(masks, WeightRecipe(8), 8, layers, rule, temperature=1 / 64, seeds=(3,), measures=())

    (done,) = run(sharp(60))
    assert done.rates[0].rate == pytest.approx(0.375, abs=1e-6)
    with pytest.raises(
        RequestError, match=r"could decide after layer 1\d\d; raise the temperature, or stop after 1\d\d"
    ):
        run(sharp(900))
    calm = replace(sharp(900), temperature=1.0)
    (done,) = run(calm)
    assert done.rates[0].rate == pytest.approx(done.tail_rate, rel=1e-3)
    chain = replace(calm, masks=(parse_schedule("causal-window:2"),), tokens=64)
    assert run(chain)[0].records[-1]["log10_mu"] < -200


@pytest.mark.parametrize(
    ("rule", "value", "flat"),
    [
        (Rule(residual=1.0), "orthogonal", False),
        (Rule(), "gaussian", True),
        (Rule(residual=0.5), "gaussian", False),
        (Rule(residual=-0.25), "orthogonal", True),
    ],
    ids=str,
)
def test_a_tail_rate_is_given_only_where_scores_have_flattened(rule, value, flat) -> None:
    (done,) = run(Experiment((parse_schedule("causal"),), WeightRecipe(8, value=value), 8, 300, rule, seeds=(2,)))
    assert (done.tail_rate is not None) == flat
    if flat:
        assert done.rates[0].rate == pytest.approx(done.tail_rate, rel=0.02)
    else:
        assert "flattened" in done.tail_reason


def test_a_tail_rate_is_not_given_to_tokens_that_a_norm_holds_apart() -> None:
    """On a ring in the plane they settle in a twisted state: attention is flat, and nothing falls."""
    (done,) = run(
        Experiment((parse_schedule("ring:1"),), WeightRecipe(2, "zero", "identity"), 32, 600, Rule(UnitNorm()))
    )
    assert done.records[-1]["relative_mu"] > 0.9
    assert done.tail_rate is None
    assert done.tail_reason == "the tokens have not merged: relative mu is still 1 at the last layer"


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_without_a_norm_its_place_changes_no_tail_rate(placement) -> None:
    rule = Rule(NoNorm(), placement)
    (done,) = run(Experiment((parse_schedule("causal"),), WeightRecipe(4), 6, 4, rule))
    assert (done.tail_rate, done.tail_reason) == (pytest.approx(0.5), None)


def test_groups_that_join_in_one_layer_of_a_band_are_refused() -> None:
    """What would be left of mu are the last digits of the differences within each group, which are rounding."""
    sharp = Experiment((parse_schedule("window:4"),), WeightRecipe(32), 64, 140, temperature=1e-6, checks=False)
    with pytest.raises(RequestError, match=r"in layer 112 all tokens join others .* stop after 111 layers"):
        run(sharp)
    (done,) = run(replace(sharp, layers=111))
    assert done.records[-1]["log10_relative_mu"] > -1


@pytest.mark.parametrize(
    ("masks", "seeds", "sharp"),
    [
        (("causal-window:2", "window:2", "ring:1"), (7,), "window:2"),  # each by its own band
        (("causal", "star"), (1, 7), "star"),  # side by side
        (("causal", "complete"), (6, 2), "complete"),  # whose samples stand at different sizes
    ],
    ids=str,
)
def test_a_refusal_of_sharp_attention_names_the_mask(masks, seeds, sharp) -> None:
    together = Experiment(
        tuple(map(parse_schedule, masks)), WeightRecipe(4), 38, 80, seeds=seeds, temperature=1e-4, checks=False
    )
    with pytest.raises(RequestError, match=f"attention under {sharp} so sharp") as refusal:
        run(together)
    with pytest.raises(RequestError) as alone:
        run(replace(together, masks=(parse_schedule(sharp),)))
    assert str(refusal.value) == str(alone.value)


def test_a_rate_below_theory_is_explained_where_tokens_start_equal() -> None:
    """Tokens of width 1 and length 1 are 1 or -1. The first four are equal here and stay so under a causal mask, so
    that the fifth is the first to differ, and falls by 1/5 where the second would fall by 1/2."""
    narrow = Experiment((parse_schedule("causal"),), WeightRecipe(1), 8, 400, checks=False)
    (done,) = run(narrow)
    assert (done.measured_rate, done.tail_rate) == (pytest.approx(1 / 5), pytest.approx(1 / 2))
    assert done.tail_reason == EQUAL_AT_START
    (done,) = run(replace(narrow, masks=(parse_schedule("window:1"),)))
    assert (done.measured_rate, done.tail_reason) == (pytest.approx(done.tail_rate), None)
    (done,) = run(replace(narrow, recipe=WeightRecipe(2)))
    assert (done.measured_rate, done.tail_reason) == (pytest.approx(1 / 2), None)


@pytest.mark.parametrize("strength", [0.9, -1.3, 0.1])
@pytest.mark.parametrize(
    "tokens",
    [[[1.0], [-1.0]], [[0.3], [-0.3]], [[1.0], [-1.0], [-1.0], [1.0]], [[0.3, 0.4], [-0.3, -0.4]]],
    ids=str,
)
def test_tokens_balanced_about_zero_stay_so(exact, tokens, strength) -> None:
    """Their mean is zero in every layer, so that relative mu is 1, however small they become."""
    x = torch.tensor(tokens, dtype=torch.float64)
    weights = torch.eye(x.shape[-1], dtype=torch.float64)[None]
    heads, masks = Heads(strength * weights, weights, weights), parse_schedule("complete")
    done = run_layers(x[None], GivenWeights((heads,)), masks, 9, Rule(), measures=())
    assert done.columns["log10_relative_mu"].abs().max() < 1e-12
    assert done.log_mu[:7, 0].tolist() == pytest.approx(exact(x, heads, masks, Rule(), 6, 1000), abs=1e-8)
