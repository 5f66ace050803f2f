"""B-thm2: the hemisphere condition with its witnesses, Wendel's probability, the bound against simulated layers."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog
from torch import Tensor

from rankfall.attention import softmax_weights
from rankfall.attention.masks import Causal, Complete, InStar, Mask, RandomSparse, Ring, Window
from rankfall.errors import RequestError
from rankfall.measures import measure
from rankfall.theory.hemisphere import gnomonic, hemisphere, wendel_probability
from rankfall.theory.norm_collapse import norm_collapse_bound


def draw(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def unit(tokens: Tensor) -> Tensor:
    return tokens / tokens.norm(dim=-1, keepdim=True)


def orthogonal(seed: int, width: int) -> Tensor:
    return torch.linalg.qr(draw(seed, width, width))[0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 12), width=st.integers(1, 6))
def test_agrees_with_a_linear_programme_and_proves_itself(seed: int, count: int, width: int) -> None:
    tokens = unit(draw(seed, count, width))
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
    tokens = draw(0, 300, 250)
    found, scaled = hemisphere(tokens), hemisphere(tokens * torch.logspace(-3, 3, 300)[:, None].double())
    assert found.exists
    assert scaled.margin == pytest.approx(found.margin, rel=1e-9)
    assert not hemisphere(draw(1, 2000, 16)).exists


def test_independent_tokens_always_share_a_hemisphere() -> None:
    assert all(hemisphere(draw(seed, 6, 6)).exists for seed in range(30))


@pytest.mark.parametrize(
    ("count", "width", "probability"), [(32, 16, 0.5), (64, 16, 1.9e-5), (64, 64, 1.0), (1, 1, 1.0), (3, 2, 0.75)]
)
def test_wendel_values(count: int, width: int, probability: float) -> None:
    assert wendel_probability(count, width) == pytest.approx(probability, rel=0.02)


def test_wendel_against_simulation() -> None:
    share = sum(hemisphere(draw(seed, 8, 4)).exists for seed in range(2000)) / 2000
    # Three standard errors.
    assert share == pytest.approx(wendel_probability(8, 4), abs=3 * 0.5 / math.sqrt(2000))


def layers(mask: Mask, seed: int, count: int, width: int, depth: int) -> tuple[list[Tensor], Tensor, float]:
    """Tokens of every layer under random weights per layer, the value matrices, and the least allowed weight met."""
    tokens = unit(draw(seed, count, width) + 1.5 * draw(seed + 1, 1, width))
    allowed = mask.dense(count)
    path, values, floor = [tokens], [], 1.0
    for layer in range(depth):
        form = draw(seed + 2 + 3 * layer, width, width) / width
        values.append(orthogonal(seed + 3 + 3 * layer, width))
        weights = softmax_weights(tokens @ form @ tokens.mT, allowed)
        floor = min(floor, float(weights[allowed].min()))
        tokens = unit(weights @ tokens @ values[-1])
        path.append(tokens)
    return path, torch.stack(values), floor


@pytest.mark.parametrize("mask", [Complete(), Causal(), Window(2), Ring(1), RandomSparse(0.4, 0)], ids=str)
def test_bound_holds_at_every_layer_and_the_margin_never_falls(mask: Mask) -> None:
    checked = 0
    for seed in range(0, 400, 50):
        path, values, floor = layers(mask, seed, 6, 6, 25)
        bound = norm_collapse_bound(path[0], values, mask.facts(6), floor)
        if not bound.applies:
            assert not mask.facts(6).quasi_strongly_connected
            continue
        for depth, tokens in enumerate(path):
            assert float(measure(tokens, ["mu"])["mu"]) <= math.exp(bound.log_mu(depth)) * (1 + 1e-9)
            assert hemisphere(tokens).margin >= bound.hemisphere.margin - 1e-9
            checked += 1
        assert 0 < bound.rate < 1
        assert bound.log_mu(1000 * (bound.radius or 1)) < bound.log_mu(0)
    assert checked > 100


def test_normalisation_disappears_in_gnomonic_coordinates() -> None:
    tokens = unit(draw(0, 5, 5))
    value = orthogonal(1, 5)
    found = hemisphere(tokens)
    assert found.direction is not None
    weights = softmax_weights(draw(2, 5, 5), Causal().dense(5))
    heights = tokens @ found.direction
    stochastic = weights * heights / (weights @ heights)[:, None]
    after = unit(weights @ tokens @ value)
    expected = stochastic @ gnomonic(tokens, found.direction) @ value
    assert torch.allclose(gnomonic(after, found.direction @ value), expected, atol=1e-13)
    assert torch.allclose(stochastic.sum(dim=-1), torch.ones(5, dtype=torch.float64))
    allowed = Causal().dense(5)
    assert stochastic[allowed].min() >= weights[allowed].min() * found.margin


def test_reports_each_hypothesis_and_refuses_a_number_when_one_fails() -> None:
    tokens, value = draw(0, 4, 5), orthogonal(0, 5)
    good = norm_collapse_bound(tokens, value, Causal().facts(4), 0.1)
    assert good.applies
    assert good.rate == pytest.approx(1 - 0.1 * good.hemisphere.margin, rel=1e-12)
    cases = {
        "value matrices are orthogonal": norm_collapse_bound(tokens, 2 * value, Causal().facts(4), 0.1),
        "some token reaches all others": norm_collapse_bound(tokens, value, InStar().facts(4), 0.1),
        "one open hemisphere": norm_collapse_bound(
            torch.cat([tokens[:2], -tokens[:2]]), value, Causal().facts(4), 0.1
        ),
        "above a floor": norm_collapse_bound(tokens, value, Causal().facts(4), 0.0),
    }
    for words, bound in cases.items():
        assert [words in c.statement for c in bound.conditions if not c.holds] == [True]
        assert not bound.applies
        with pytest.raises(RequestError, match=words):
            bound.log_mu(3)


def test_tiny_floors_do_not_round_the_rate_to_one() -> None:
    bound = norm_collapse_bound(draw(0, 4, 5), orthogonal(0, 5), Window(1).facts(4), 1e-12)
    assert bound.log_factor < 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: hemisphere(torch.zeros(2, 3)), "differ from zero"),
        (lambda: hemisphere(torch.ones(3)), r"shape \(n, d\)"),
        (lambda: wendel_probability(0, 2), "the number of tokens"),
        (lambda: gnomonic(-torch.eye(2), torch.ones(2)), "in the open hemisphere around"),
        (
            lambda: norm_collapse_bound(torch.eye(2), torch.ones(2, 3), Complete().facts(2), 0.1),
            "value matrices of shape",
        ),
    ],
)
def test_wrong_requests(call: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()  # type: ignore[operator]
