"""B-thm2: the hemisphere condition with its witnesses, Wendel's probability, the bound against simulated layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from tests.sampling import normal
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.masks import Causal, Complete, InStar, Mask, MaskSchedule, RandomSparse, Ring, Window
from rankfall.measures.base import measure
from rankfall.mechanism.attend import softmax_weights
from rankfall.mechanism.heads import Heads, attention
from rankfall.norms import LayerNorm, NoNorm, Norm, RMSNorm, UnitNorm
from rankfall.theory.norm_collapse import gnomonic, hemisphere, norm_collapse_theorem, wendel_probability


def unit(tokens: Tensor) -> Tensor:
    return tokens / tokens.norm(dim=-1, keepdim=True)


def orthogonal(seed: int, width: int) -> Tensor:
    return torch.linalg.qr(normal(seed, width, width))[0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), width=st.integers(1, 6))
def test_agrees_with_a_linear_programme_and_proves_itself(seed: int, count: int, width: int) -> None:
    tokens = unit(normal(seed, count, width))
    found = hemisphere(tokens)
    # Feasible with slack iff some e in the unit cube has <x_i, e> >= s > 0.
    solved = linprog(
        np.r_[np.zeros(width), -1.0],
        A_ub=np.c_[-tokens.numpy(), np.ones(count)],
        b_ub=np.zeros(count),
        bounds=[(-1, 1)] * width + [(None, 1)],
    )
    assert found.exists == (-solved.fun > 1e-9)
    assert found.weights.min() >= 0
    assert float(found.weights.sum()) == pytest.approx(1.0, abs=1e-12)
    if found.direction is not None:
        assert float(found.direction.norm()) == pytest.approx(1.0, abs=1e-12)
        assert float((tokens @ found.direction).min()) == pytest.approx(found.margin, abs=1e-12)
        assert found.gap < 1e-12, "direction and weights prove the margin from both sides"
    else:
        assert (found.weights @ tokens).norm() < 1e-12, "non-negative weights balance the tokens"


def test_known_margins() -> None:
    square = torch.eye(4, dtype=torch.float64)
    assert hemisphere(square).margin == pytest.approx(0.5, abs=1e-14)
    assert not hemisphere(torch.cat([square, -square])).exists
    narrow = torch.tensor([[1.0, 1e-6], [-1.0, 1e-6]], dtype=torch.float64)
    assert hemisphere(narrow).margin == pytest.approx(1e-6, rel=1e-6)
    boundary = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    assert not hemisphere(boundary).exists, "a closed hemisphere is not an open one"


def test_scale_does_not_matter_and_large_sets_work() -> None:
    tokens = normal(0, 300, 250)
    found, scaled = hemisphere(tokens), hemisphere(tokens * torch.logspace(-3, 3, 300)[:, None].double())
    assert found.exists
    assert scaled.margin == pytest.approx(found.margin, rel=1e-9)
    assert not hemisphere(normal(1, 2000, 16)).exists


def test_independent_tokens_always_share_a_hemisphere() -> None:
    assert all(hemisphere(normal(seed, 6, 6)).exists for seed in range(30))


@pytest.mark.parametrize(
    ("count", "width", "probability"), [(32, 16, 0.5), (64, 16, 1.9e-5), (64, 64, 1.0), (1, 1, 1.0), (3, 2, 0.75)]
)
def test_wendel_values(count: int, width: int, probability: float) -> None:
    assert wendel_probability(count, width) == pytest.approx(probability, rel=0.02)


def test_wendel_against_simulation() -> None:
    share = sum(hemisphere(normal(seed, 8, 4)).exists for seed in range(2000)) / 2000
    # Three standard errors.
    assert share == pytest.approx(wendel_probability(8, 4), abs=3 * 0.5 / math.sqrt(2000))


def heads(value: Tensor, form: Tensor | None = None) -> Heads:
    """One head with scores x M y^T and that value matrix."""
    width = len(value)
    query = torch.zeros_like(value) if form is None else form
    return Heads(query[None], torch.eye(width, dtype=torch.float64)[None], value[None], scale=1.0)


def layers(mask: Mask, seed: int, count: int, width: int, depth: int) -> tuple[list[Tensor], list[Heads], float]:
    """Tokens of every layer under random weights per layer, those weights, and the least allowed weight met."""
    tokens = unit(normal(seed, count, width) + 1.5 * normal(seed + 1, 1, width))
    allowed = mask.dense(count)
    path, weights, floor = [tokens], [], 1.0
    for layer in range(depth):
        form = normal(seed + 2 + 3 * layer, width, width) / width
        # The norm takes off the factor 1.7.
        weights.append(heads(1.7 * orthogonal(seed + 3 + 3 * layer, width), form))
        attended = softmax_weights(tokens @ form @ tokens.mT, allowed)
        floor = min(floor, float(attended[allowed].min()))
        tokens = unit(attention(weights[-1], tokens, mask=mask))
        path.append(tokens)
    return path, weights, floor


@pytest.mark.parametrize("measured", [True, False], ids=["measured floor", "floor from weights"])
@pytest.mark.parametrize("mask", [Complete(), Causal(), Window(2), Ring(1), RandomSparse(0.4, 0)], ids=str)
def test_bound_holds_at_every_layer_and_the_margin_never_falls(mask: Mask, measured: bool) -> None:
    checked = 0
    for seed in range(0, 300, 50):
        path, weights, floor = layers(mask, seed, 6, 6, 20)
        theorem = norm_collapse_theorem(weights, mask, path[0], floor=floor if measured else None)
        assert theorem.applies, theorem.reason
        assert theorem.bound is not None
        assert theorem.bound.least_weight <= floor * theorem.hemisphere.margin * (1 + 1e-12)
        limits = theorem.log_mu(torch.arange(len(path))).exp()
        for limit, tokens in zip(limits, path, strict=True):
            assert float(measure(tokens, ["mu"])["mu"]) <= float(limit) * (1 + 1e-9)
            assert hemisphere(tokens).margin >= theorem.hemisphere.margin - 1e-9
            checked += 1
        assert theorem.bound.log_rate < 0
    assert checked > 100


@pytest.mark.parametrize(("norm", "factor"), [(UnitNorm(), 1.0), (RMSNorm(), 2.0)], ids=str)
def test_bound_by_hand(norm: Norm, factor: float) -> None:
    """Two tokens at 60 degrees on either side of e_1, causal: the margin is 1/2, gnomonic (1, +-sqrt(3)).

    Uniform attention: mu after t layers is at most (sqrt(2)/2) 2 sqrt(3) (1 - 1/4)^t times the tokens' length.
    Scores <x_i, x_j> spread by at most 2 length^2: eps = 1 / (1 + e^(2 length^2)).
    """
    tokens = torch.tensor([[0.5, math.sqrt(0.75)], [0.5, -math.sqrt(0.75)]], dtype=torch.float64)
    tokens, eye = math.sqrt(factor) * tokens, torch.eye(2, dtype=torch.float64)
    for form, floor in ((None, 1 / 2), (eye, 1 / (1 + math.exp(2 * factor)))):
        theorem = norm_collapse_theorem([heads(eye, form)], Causal(), tokens, norm=norm)
        assert theorem.applies, theorem.reason
        assert theorem.bound is not None
        assert theorem.bound.least_weight == pytest.approx(floor / 2, rel=1e-12)
        expected = [math.sqrt(6 * factor) * (1 - floor / 2) ** layer for layer in range(6)]
        assert theorem.log_mu(torch.arange(6)).exp().tolist() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("norm", [RMSNorm(0.1), NoNorm()], ids=str)
def test_a_norm_that_leaves_lengths_different_is_outside(norm: Norm) -> None:
    theorem = norm_collapse_theorem([heads(orthogonal(0, 5))], Causal(), unit(normal(0, 4, 5)), norm=norm)
    assert [one.hypothesis for one in theorem.hypotheses if not one.holds] == [
        "every layer scales tokens to one length"
    ]


def test_normalisation_disappears_in_gnomonic_coordinates() -> None:
    tokens = unit(normal(0, 5, 5))
    value = orthogonal(1, 5)
    found = hemisphere(tokens)
    assert found.direction is not None
    weights = softmax_weights(normal(2, 5, 5), Causal().dense(5))
    heights = tokens @ found.direction
    stochastic = weights * heights / (weights @ heights)[:, None]
    after = unit(weights @ tokens @ value)
    expected = stochastic @ gnomonic(tokens, found.direction) @ value
    assert torch.allclose(gnomonic(after, found.direction @ value), expected, atol=1e-13)
    assert torch.allclose(stochastic.sum(dim=-1), torch.ones(5, dtype=torch.float64))
    allowed = Causal().dense(5)
    assert stochastic[allowed].min() >= weights[allowed].min() * found.margin


def test_reports_each_hypothesis_and_refuses_a_number_when_one_fails() -> None:
    tokens, layer = unit(normal(0, 4, 5)), heads(orthogonal(0, 5))
    good = norm_collapse_theorem([layer], Causal(), tokens)
    assert good.applies
    assert good.bound is not None
    assert good.bound.rate == pytest.approx(1 - good.hemisphere.margin / 4, rel=1e-12), "uniform: eps is one over deg"
    twice = Heads(
        layer.query.repeat(2, 1, 1), layer.key.repeat(2, 1, 1), torch.cat([layer.value, -layer.value]), scale=1.0
    )
    balanced = torch.cat([tokens[:2], -tokens[:2]])
    cases = {
        "value matrices are orthogonal": norm_collapse_theorem([heads(normal(3, 5, 5))], Causal(), tokens),
        "one for all heads": norm_collapse_theorem([twice], Causal(), tokens),
        "the mask has a root": norm_collapse_theorem([layer], InStar(), tokens),
        "one open hemisphere": norm_collapse_theorem([layer], Causal(), balanced),
        "every layer scales tokens to one length": norm_collapse_theorem([layer], Causal(), tokens, norm=LayerNorm()),
        "tokens start at that length": norm_collapse_theorem([layer], Causal(), 2 * tokens),
        "no residual connection": norm_collapse_theorem([layer], Causal(), tokens, residual=1.0),
        "above a floor": norm_collapse_theorem([layer], Causal(), tokens, floor=0.0),
    }
    for words, theorem in cases.items():
        assert [words in one.hypothesis for one in theorem.hypotheses if not one.holds] == [True], words
        assert not theorem.applies
        assert f"{theorem.reason}".startswith("required: "), "what is required, not what is found, comes first"
        with pytest.raises(RequestError, match=words):
            theorem.log_mu(torch.arange(3))


def test_time_varying_masks_count_by_their_period() -> None:
    schedule = MaskSchedule((Window(1), InStar()))
    theorem = norm_collapse_theorem([heads(orthogonal(0, 5))], schedule, unit(normal(0, 5, 5)))
    assert theorem.bound is not None
    assert theorem.facts.radius is not None
    assert theorem.bound.steps == 2 * theorem.facts.radius


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hemisphere(torch.zeros(2, 3)), "differ from zero"),
        (lambda: hemisphere(torch.ones(3)), r"shape \(n, d\)"),
        (lambda: wendel_probability(0, 2), "the number of tokens"),
        (lambda: gnomonic(-torch.eye(2), torch.ones(2)), "in the open hemisphere around"),
    ],
)
def test_wrong_requests(call: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()  # type: ignore[operator]
