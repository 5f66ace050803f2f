"""A-conj8, evidence: votes of rank-1 heads among more points, against the network itself and against exact limits."""

from __future__ import annotations

import math

import pytest
import torch
from tests.formulas import single_plurality_success

from rankfall.constructions.base import sampled_error
from rankfall.constructions.linear_regime import LinearRegime
from rankfall.constructions.vote_quality import count_votes, plurality_floor, three_point_shares, vote_curve
from rankfall.constructions.votes import PluralityVote
from rankfall.errors import RequestError
from rankfall.theory.targets import orthonormal_points, uniform_sphere
from rankfall.theory.votes import majority_error


def test_shares_of_three_points_are_exact() -> None:
    """200,000 votes for each of four samples; 5 standard errors of a share."""
    rng = torch.Generator().manual_seed(0)
    points, queries = uniform_sphere((4, 3, 7), rng), uniform_sphere((4, 1, 7), rng)
    shares, votes = three_point_shares(points, queries), 200_000
    assert torch.allclose(shares.sum(-1), torch.ones(4, dtype=torch.float64), atol=1e-12)
    counted = count_votes(points, queries, votes, rng).double() / votes
    assert (counted - shares).abs().max() < 5 * 0.5 / math.sqrt(votes)


def test_simulation_in_law_equals_the_network() -> None:
    """d=8, N=4, 101 heads, both ways: the share of wrong answers agrees within 4 standard errors."""
    fast = vote_curve("orthonormal", 8, 4, (101,), samples=2_000, seed=1)[0]
    slow = sampled_error(PluralityVote(8, points=4, heads=101), samples=20, seed=2, networks=100)
    assert abs(fast.mse - slow.mse) < 4 * math.hypot(slow.standard_error, 2 * fast.standard_error)


def test_two_points_meet_the_majority_integral() -> None:
    curve = vote_curve("orthonormal", 16, 2, (1, 101), samples=4_000, seed=3)
    for quality in curve:
        assert quality.heads is not None
        assert abs(quality.wrong - majority_error(16, quality.heads)) < 4 * quality.standard_error


def test_one_head_among_many() -> None:
    """Accuracy of a single head, d=16, N=8: the first-order formula to 0.003 plus 4 standard errors."""
    quality = vote_curve("orthonormal", 16, 8, (1,), samples=6_000, seed=4)[0]
    assert abs(1 - quality.wrong - single_plurality_success(16, 8)) < 0.003 + 4 * quality.standard_error


def test_orthonormal_points_are_decided_right_in_the_limit_and_independent_ones_are_not() -> None:
    assert plurality_floor(6, samples=5_000, seed=5, law="orthonormal").wrong == 0.0
    floor = plurality_floor(16, samples=20_000, seed=6)
    # 0.1537 with standard error 0.0008 from 200,000 samples of another seed
    assert abs(floor.wrong - 0.1537) < 4 * floor.standard_error + 0.0032
    assert floor.heads is None


def test_more_votes_help_orthonormal_points_only() -> None:
    few, many = vote_curve("orthonormal", 8, 3, (100, 10_000), samples=400, seed=7)
    assert many.wrong < few.wrong / 3
    few, many = vote_curve("independent", 8, 3, (1_000, 10_000), samples=400, seed=8)
    assert many.wrong > 0.08


@pytest.mark.parametrize("rank", [1, 4])
def test_layer_two_needs_rank_with_the_context(rank: int) -> None:
    """N=8: a rank-1 second layer can fetch 2 of the 8 points at best; half the rank still errs on a third."""
    found = sampled_error(LinearRegime(16, points=8, gain=0.01, code_rank=rank), samples=500, seed=9, networks=4)
    assert found.wrong > {1: 1 - 2 / 8 - 0.05, 4: 0.3}[rank]


def test_orthonormal_frames_draw_from_the_same_law_as_the_network() -> None:
    rng = torch.Generator().manual_seed(10)
    points, queries = orthonormal_points((3, 4, 6), rng), uniform_sphere((3, 1, 6), rng)
    assert torch.equal(count_votes(points, queries, 50, rng).sum(-1), torch.full((3,), 50.0))


def test_refusals() -> None:
    with pytest.raises(RequestError, match="rising numbers of heads"):
        vote_curve("orthonormal", 8, 4, (10, 5), samples=10, seed=0)
    with pytest.raises(RequestError, match="orthonormal points to number at least one and at most the dimension"):
        vote_curve("orthonormal", 4, 8, (10,), samples=10, seed=0)
