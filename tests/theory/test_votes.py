"""Majority and plurality votes of rank-1 hardmax heads against simulated votes."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.formulas import single_plurality_success
from tests.sampling import assert_within, draw_problem

from rankfall.errors import RequestError
from rankfall.theory.harmonics import density_at_zero
from rankfall.theory.targets import uniform_sphere
from rankfall.theory.votes import head_success, majority_error, plurality_error_asymptotic


@pytest.mark.parametrize("dim", [3, 16])
def test_success_of_one_head(dim: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    w = torch.eye(dim, dtype=torch.float64)[0]
    t = 0.4
    y = t * w + math.sqrt(1 - t**2) * torch.eye(dim, dtype=torch.float64)[1]
    q = uniform_sphere((50_000, dim), generator)
    aside = uniform_sphere((50_000, dim), generator)
    aside = torch.nn.functional.normalize(aside - (aside * q).sum(-1, keepdim=True) * q, dim=-1)
    for k, expected in ((q, float(head_success(np.array(t)))), (aside, 0.5)):
        right = ((q @ y).sign() * (k @ w).sign() > 0).double()
        assert_within(right, expected)


@pytest.mark.parametrize(("dim", "heads"), [(2, 3), (4, 1), (16, 25), (64, 101)])
def test_majority_against_a_simulated_vote(dim: int, heads: int) -> None:
    points, query, _ = draw_problem(4_000, dim)
    q = uniform_sphere((4_000, heads, dim), torch.Generator().manual_seed(heads))
    w = points[:, 0] - points[:, 1]
    votes = ((q @ w[:, :, None]).sign() * (q @ query.mT).sign()).sum((1, 2))
    wrong = (votes * (w * query[:, 0]).sum(-1) < 0).double()
    assert_within(wrong, majority_error(dim, heads))


def majority_error_asymptotic(dim: int, heads: int) -> float:
    """Large H: P_err ~ f_d(0) sqrt(pi/(2H)) ~ sqrt(d/H)/2, so that H ~ d/(4 P_err^2) heads are needed."""
    return density_at_zero(dim) * math.sqrt(math.pi / (2 * heads))


@pytest.mark.parametrize("dim", [4, 64, 512])
def test_majority_for_many_heads(dim: int) -> None:
    heads = 100_001 + 100_000 * (dim // 64)
    assert majority_error(dim, heads) == pytest.approx(majority_error_asymptotic(dim, heads), rel=6e-3)
    assert majority_error(64, 101) == pytest.approx(0.2830, abs=1e-4)


@pytest.mark.parametrize(("dim", "count"), [(16, 2), (16, 8), (64, 16)])
def test_one_head_among_many_points(dim: int, count: int) -> None:
    points, query, _ = draw_problem(20_000, dim, count)
    q = uniform_sphere((20_000, 1, dim), torch.Generator().manual_seed(5))
    scores = (points @ q.mT)[..., 0] * (q @ query.mT)[:, 0]
    right = (scores.argmax(-1) == (points @ query.mT)[..., 0].argmax(-1)).double()
    assert_within(right, single_plurality_success(dim, count), slack=4e-3)


def test_plurality_for_many_heads() -> None:
    dim, count, heads, trials = 16, 8, 2_001, 1_500
    points, query, _ = draw_problem(trials, dim, count)
    q = uniform_sphere((heads, dim), torch.Generator().manual_seed(6))
    scores = torch.einsum("bnd,hd->bhn", points, q) * torch.einsum("bd,hd->bh", query[:, 0], q)[..., None]
    tally = torch.nn.functional.one_hot(scores.argmax(-1), count).sum(1)
    wrong = (tally.argmax(-1) != (points @ query.mT)[..., 0].argmax(-1)).double()
    expected = plurality_error_asymptotic(dim, count, heads)
    assert_within(wrong, expected, slack=0.12 * expected)


def test_an_even_number_of_voters_is_refused() -> None:
    with pytest.raises(RequestError, match="an odd number of heads, so that no vote ties; got 10; use 11"):
        majority_error(8, 10)
