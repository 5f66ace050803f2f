"""B-thm1 as numbers: bounds never beaten, hypotheses that fail say so, spectra in closed form."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.formulas import ring_second_eigenvalue

from rankfall.dynamics.step import random_tokens
from rankfall.dynamics.trajectory import run_layers
from rankfall.dynamics.weights import DrawnWeights, WeightRecipe
from rankfall.masks import parse_mask, parse_schedule
from rankfall.mechanism.attend import attention_weights
from rankfall.mechanism.heads import Heads, project
from rankfall.norms import parse_norm
from rankfall.theory.collapse import ContractionBound, collapse_theorem, least_weight, score_strength
from rankfall.theory.ergodicity import certify, dobrushin, spectral_coefficient
from rankfall.theory.uniform_attention import other_eigenvalues, tail_rate, uniform_attention

ROOTED = (
    "complete",
    "causal",
    "window:2",
    "causal-window:2",
    "star",
    "out-star",
    "prefix:3",
    "ring:1",
    "random:0.4:3",
)


def weights_of(seed: int, dim: int = 4) -> Heads:
    drawn = DrawnWeights(WeightRecipe(dim), [seed]).at(0)
    return Heads(drawn.query[0], drawn.key[0], drawn.value[0])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10_000), size=st.floats(0.1, 3), name=st.sampled_from(ROOTED))
def test_least_weight_is_never_undercut(seed, size, name) -> None:
    heads, tokens, mask = weights_of(seed), size * random_tokens([seed], 8, 4)[0], parse_mask(name)
    weights = attention_weights(project(tokens, heads.query), project(tokens, heads.key), mask)
    allowed = mask.dense(8)
    measured = float(weights[0][allowed].min())
    degree, strength = int(allowed.sum(dim=-1).max()), score_strength(heads)
    diameter = float(torch.cdist(tokens, tokens).max())
    rough, sharp = least_weight(degree, strength, size), least_weight(degree, strength, size, diameter)
    assert rough <= sharp <= measured * (1 + 1e-12)


@pytest.mark.parametrize("name", [*ROOTED, "window:1+dilated:2:2", "causal+window:1"])
def test_bound_is_never_beaten(name) -> None:
    masks, tokens, heads = parse_schedule(name), random_tokens([1], 8, 4), weights_of(1)
    theorem = collapse_theorem([heads], masks, tokens[0])
    assert theorem.applies
    assert theorem.reason is None
    done = run_layers(tokens, DrawnWeights(WeightRecipe(4), [1]), masks, 60, measures=(), ordinary=False)
    bound = theorem.bound.log_mu(torch.tensor(done.layers), tokens[0])
    assert bool((done.log_mu[:, 0] <= bound + 1e-12).all())
    assert theorem.bound.rate < 1


def test_constant_of_the_bound_by_hand() -> None:
    """(sqrt(4)/2) sqrt(3^2 + 4^2) = 5, times 1 - (1/2)^2 for each two whole layers, times 1/3 for every layer."""
    start = torch.tensor([[0.0, 0.0], [3.0, 0.0], [0.0, 4.0], [1.0, 1.0]], dtype=torch.float64)
    bound = ContractionBound(least_weight=0.5, steps=2, tokens=4, value_norm=1 / 3)
    expected = [5.0, 5 / 3, 5 * 0.75 / 9, 5 * 0.75 / 27, 5 * 0.75**2 / 81]
    assert bound.log_mu(torch.arange(5), start).exp().tolist() == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize("n", [2, 4, 10])
def test_constant_of_the_bound_is_attained(n) -> None:
    """Half the tokens at 1, half at -1: mu is sqrt(N), no less than the bound at layer 0."""
    start = torch.tensor([1.0, -1.0] * (n // 2), dtype=torch.float64)[:, None]
    mu = float((start - start.mean()).norm())
    assert float(ContractionBound(0.5, 1, n).log_mu(torch.tensor(0), start)) == pytest.approx(math.log(mu), abs=1e-14)


def test_whole_theorem_by_hand() -> None:
    """Tokens 1, 1/2, 0 on a line, causal, scores 2 x_i x_j: s = 2, R = D = 1, deg = 3, eps = 1 / (1 + 2 e^2).

    mu after t layers is at most (sqrt(3)/2) (1 - eps)^t. Without the tokens' diameter eps is 1 / (1 + 2 e^4).
    """
    one = torch.ones(1, 1, 1, dtype=torch.float64)
    start = torch.tensor([[1.0], [0.5], [0.0]], dtype=torch.float64)
    theorem = collapse_theorem([Heads(2 * one, one, one)], parse_mask("causal"), start)
    with mpmath.workdps(30):
        kept = 1 - 1 / (1 + 2 * mpmath.e**2)
        expected = [float(mpmath.sqrt(3) / 2 * kept**layer) for layer in range(5)]
        rough = float(1 / (1 + 2 * mpmath.e**4))
    assert theorem.log_mu(torch.arange(5)).exp().tolist() == pytest.approx(expected, rel=1e-14)
    assert theorem.bound.rate == pytest.approx(float(kept), rel=1e-14)
    assert least_weight(3, 2.0, 1.0) == pytest.approx(rough, rel=1e-14)


def test_longer_radius_and_period_by_hand() -> None:
    """A causal window of one over four tokens has radius 3: uniform weights of 1/2 prove 1 - 1/8 in three layers."""
    zero, one = torch.zeros(1, 1, 1, dtype=torch.float64), torch.ones(1, 1, 1, dtype=torch.float64)
    start = torch.arange(4.0, dtype=torch.float64)[:, None]
    theorem = collapse_theorem([Heads(zero, one, one)], parse_mask("causal-window:1"), start)
    assert (theorem.bound.least_weight, theorem.bound.steps) == (0.5, 3)
    assert float(theorem.log_mu(torch.tensor(7)).exp()) == pytest.approx(3 * (7 / 8) ** 2, rel=1e-14)
    twice = collapse_theorem([Heads(zero, one, one)], parse_schedule("causal-window:1+causal-window:1"), start)
    assert twice.bound.steps == 6


def test_facts_of_the_bound() -> None:
    bound = ContractionBound(least_weight=0.1, steps=3, tokens=8)
    assert bound.rate == pytest.approx((1 - 1e-3) ** (1 / 3))
    tiny = ContractionBound(least_weight=1e-20, steps=2, tokens=8)
    assert tiny.rate == 1.0
    assert tiny.log_rate == pytest.approx(-5e-41)
    assert tiny.log_gap() == pytest.approx(math.log(5e-41))
    assert least_weight(1, 3.0, 1.0) == 1.0
    assert least_weight(5, 1e6, 10.0) == 0.0


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"mask": "in-star"}, "no token that reaches all others"),
        ({"mask": "block-diagonal:2+in-star"}, "union over a period of 2 has no token"),
        (
            {"norm": "unit"},
            "required: no norm between layers (found: norm: unit; B-thm2 is for norms after a layer that only scale)",
        ),
        ({"residual": 1.0}, "no residual connection"),
        ({"value": 3.0}, "tokens stay bounded"),
        ({"heads": 2}, "one value map for all heads"),
        ({"query_bias": True}, "query biases present"),
    ],
)
def test_each_hypothesis_can_fail(change, match) -> None:
    heads = weights_of(0)
    if "value" in change:
        heads = replace(heads, value=change["value"] * heads.value)
    if "heads" in change:
        drawn = DrawnWeights(WeightRecipe(4, heads=2), [0]).at(0)
        heads = Heads(drawn.query[0], drawn.key[0], drawn.value[0])
    if "query_bias" in change:
        heads = replace(heads, query_bias=torch.ones(1, 4, dtype=torch.float64))
    theorem = collapse_theorem(
        [heads],
        parse_schedule(change.get("mask", "causal")),
        random_tokens([0], 6, 4)[0],
        norm=parse_norm(change.get("norm", "none")),
        residual=change.get("residual", 0.0),
    )
    assert not theorem.applies
    assert theorem.bound is None
    assert match in theorem.reason
    assert sum(not one.holds for one in theorem.hypotheses) == 1


def test_uniform_attention_needs_no_bounded_tokens() -> None:
    heads = replace(weights_of(0), query=torch.zeros(1, 4, 4, dtype=torch.float64))
    heads = replace(heads, value=2 * heads.value)
    theorem = collapse_theorem([heads], parse_mask("causal"), random_tokens([0], 6, 4)[0])
    assert theorem.bound.least_weight == pytest.approx(1 / 6)
    assert theorem.bound.value_norm == pytest.approx(2)


def test_second_eigenvalues_in_closed_form() -> None:
    for n in (2, 3, 8, 33):
        assert tail_rate(parse_mask("causal"), n) == 0.5
        assert tail_rate(parse_mask("out-star"), n) == 0.5
        assert tail_rate(parse_mask("complete"), n) == 0
    assert tail_rate(parse_mask("star"), 9) == pytest.approx(0.5, abs=1e-12)
    assert tail_rate(parse_mask("causal-window:1"), 200) == 0.5
    assert tail_rate(parse_mask("prefix:4"), 10) == pytest.approx(1 / 5)
    assert tail_rate(parse_mask("in-star"), 5) == 1
    for width, n in ((1, 7), (2, 9), (3, 24)):
        assert tail_rate(parse_mask(f"ring:{width}"), n) == pytest.approx(ring_second_eigenvalue(width, n), abs=1e-12)


def test_spectrum_is_that_of_the_matrix() -> None:
    for name in ("window:2", "random:0.4:3", "global-window:1:1", "prefix:3"):
        dense = np.linalg.eigvals(uniform_attention(parse_mask(name), 9))
        dense = dense[np.argsort(-np.abs(dense))][1:]
        ours = other_eigenvalues(parse_mask(name), 9)
        np.testing.assert_allclose(np.abs(ours), np.abs(dense), atol=1e-7)


def test_long_window_by_shift_and_invert(monkeypatch) -> None:
    from rankfall.theory import uniform_attention as module

    expected = tail_rate(parse_mask("window:2"), 300)
    monkeypatch.setattr(module, "DENSE_LIMIT", 100)
    assert tail_rate(parse_mask("window:2"), 300) == pytest.approx(expected, abs=1e-9)


def test_tail_with_residual_and_general_values() -> None:
    """mu of X' = 0.3 X + U X V, followed exactly, falls as max |0.3 + lambda_k lambda_j|."""
    from rankfall.dynamics.rate import measured_rate
    from rankfall.dynamics.step import Rule

    weights = DrawnWeights(WeightRecipe(3, "zero", "gaussian"), [4])
    values = np.linalg.eigvals(weights.at(0).value[0, 0].numpy())
    predicted = tail_rate(parse_mask("window:2"), 8, values, residual=0.3)
    done = run_layers(
        random_tokens([4], 8, 3),
        weights,
        parse_mask("window:2"),
        600,
        Rule(residual=0.3),
        measures=(),
        ordinary=False,
    )
    assert measured_rate(done.layers, done.log_mu[:, 0].tolist()).rate == pytest.approx(predicted, rel=1e-2)


@settings(max_examples=20, deadline=None, derandomize=True)
@given(seed=st.integers(0, 1000))
def test_coefficients_contract(seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    one, other = torch.softmax(2 * torch.randn(2, 6, 6, generator=generator, dtype=torch.float64), dim=-1)
    x = torch.randn(6, 3, generator=generator, dtype=torch.float64)
    assert dobrushin(one @ other) <= dobrushin(one) * dobrushin(other) + 1e-12
    spread = (one @ x).amax(dim=0) - (one @ x).amin(dim=0)
    assert bool((spread <= dobrushin(one) * (x.amax(dim=0) - x.amin(dim=0)) + 1e-12).all())
    before, after = x - x.mean(dim=0), one @ x - (one @ x).mean(dim=0)
    assert float(after.norm()) <= spectral_coefficient(one) * float(before.norm()) + 1e-12


def test_coefficients_by_hand() -> None:
    """Uniform causal attention of three tokens: rows 1 and 3 differ by 2/3 + 1/3 + 1/3, their squares' by 7/9."""
    causal = torch.tensor([[1, 0, 0], [1 / 2, 1 / 2, 0], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)
    assert dobrushin(causal) == pytest.approx(2 / 3, rel=1e-14)
    proved = certify([causal, causal])
    assert proved.dobrushin == pytest.approx(math.sqrt(7 / 18), rel=1e-14)
    assert (proved.layers, proved.least_weight) == (2, pytest.approx(1 / 3))
    # (1, -1) becomes (0, -1/2), that is (1/4, -1/4) about its mean.
    two = torch.tensor([[1 / 2, 1 / 2], [1 / 4, 3 / 4]], dtype=torch.float64)
    assert dobrushin(two) == spectral_coefficient(two) == pytest.approx(1 / 4, rel=1e-14)
    assert certify([two, two, two]).spectral == pytest.approx(1 / 4, rel=1e-14)
    assert dobrushin(torch.eye(3, dtype=torch.float64)) == 1


def test_coefficients_are_attained() -> None:
    """Some numbers spread as much as Dobrushin says, and some vector keeps as much as the spectral one says."""
    causal = torch.from_numpy(uniform_attention(parse_mask("causal"), 5))
    corners = torch.cartesian_prod(*[torch.tensor([0.0, 1.0], dtype=torch.float64)] * 5).T
    spread = (causal @ corners).amax(dim=0) - (causal @ corners).amin(dim=0)
    assert float(spread.max()) == pytest.approx(dobrushin(causal), rel=1e-14)
    centre = torch.eye(5, dtype=torch.float64) - 1 / 5
    worst = torch.linalg.svd(centre @ causal @ centre).Vh[0]
    assert float((centre @ causal @ worst).norm()) == pytest.approx(spectral_coefficient(causal), rel=1e-12)


def test_certificate_tends_to_the_second_eigenvalue() -> None:
    uniform = torch.from_numpy(uniform_attention(parse_mask("window:2"), 10))
    proved = certify([uniform] * 400)
    assert proved.spectral == pytest.approx(tail_rate(parse_mask("window:2"), 10), rel=0.01)
    assert proved.least_weight == pytest.approx(1 / 5)
    assert certify([]) is None
