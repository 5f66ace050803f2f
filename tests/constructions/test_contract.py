"""What a listed construction owes: a statement, examples, the error it predicts, weights of the foundation, refusals.

Everything comes from the catalogue. Tolerances are standard errors of the run: four of them, so that a right
prediction fails once in 16,000; and a run must be long enough that a prediction off by a half cannot pass.
"""

from __future__ import annotations

import math
import re

import pytest
import torch

from rankfall.catalogue import CONSTRUCTIONS
from rankfall.constructions.base import Construction, Example, sampled_error
from rankfall.constructions.full_rank_head import FullRankHead
from rankfall.constructions.linear_regime import LinearRegime
from rankfall.constructions.oscillating_sum import OscillatingSum
from rankfall.constructions.plane import EqualAngles, QuantisedQuery
from rankfall.constructions.votes import MajorityVote, PluralityVote, frame_codes
from rankfall.errors import RequestError
from rankfall.mechanism.heads import Heads
from rankfall.theory.head_bounds import HeadClass, mse_floor

STATEMENTS = {"A-fact", "A-thm2", "A-thm4", "A-thm7", "A-conj8"}
SIGMAS = 4
ROUNDING = 1e-20
MOST_SLACK = 0.1
EXAMPLES = [example for kind in CONSTRUCTIONS for example in kind.examples()]


def test_every_statement_has_a_construction() -> None:
    assert {kind.statement for kind in CONSTRUCTIONS} >= STATEMENTS
    assert all(re.fullmatch(r"[AB]-[a-z]+\d*", kind.statement) for kind in CONSTRUCTIONS)


@pytest.mark.parametrize("kind", CONSTRUCTIONS, ids=lambda kind: kind.name)
def test_examples_are_of_several_sizes_and_leave_nothing_open(kind: type[Construction]) -> None:
    examples = kind.examples()
    assert len({example.construction for example in examples}) >= 2
    for example in examples:
        assert type(example.construction) is kind
        exact = example.construction.predicted_error().exactness == "exact"
        assert 0 <= example.slack <= (0 if exact else MOST_SLACK)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: repr(example.construction))
def test_the_predicted_error_is_the_error_of_the_weights(example: Example) -> None:
    construction = example.construction
    found = sampled_error(construction, example.samples, seed=1, law=example.law, networks=example.networks)
    predicted = construction.predicted_error().mse
    noise = SIGMAS * found.standard_error
    assert noise <= 0.4 * predicted + ROUNDING, "too few samples to tell a wrong prediction from a right one"
    assert abs(found.mse - predicted) <= noise + example.slack * predicted + ROUNDING
    network = construction.build(torch.Generator().manual_seed(0))
    nearest = type(construction).target is Construction.target
    if nearest and construction.points == 2 and example.law == "orthonormal" and len(network.layers) == 1:
        floor = mse_floor(HeadClass(construction.dim, network.rank), network.heads).mse
        assert predicted >= floor, "no layer of such heads goes below the bound of A-thm2"


@pytest.mark.parametrize("kind", CONSTRUCTIONS, ids=lambda kind: kind.name)
def test_weights_are_the_foundations(kind: type[Construction]) -> None:
    construction = kind.examples()[0].construction
    network = construction.build(torch.Generator().manual_seed(0), torch.float32)
    assert all(isinstance(layer.heads, Heads) for layer in network.layers)
    assert all(layer.heads.query.dtype == torch.float32 for layer in network.layers)
    rng = torch.Generator().manual_seed(1)
    points = torch.randn(5, construction.points, construction.dim, generator=rng)
    queries = torch.randn(5, 3, construction.dim, generator=rng)
    assert network(points, queries).shape == (5, 3, construction.dim)


@pytest.mark.parametrize("kind", [MajorityVote, LinearRegime, EqualAngles, QuantisedQuery])
def test_low_rank_ones_are_of_rank_one(kind: type[Construction]) -> None:
    assert kind.examples()[0].construction.build(torch.Generator().manual_seed(0)).rank == 1


def test_batches_cover_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sampled_error(FullRankHead(4, inverse_temperature=5.0), samples=2_003, seed=0)
    monkeypatch.setattr("rankfall.constructions.base.ENTRIES_AT_ONCE", 1_000)
    parts = sampled_error(FullRankHead(4, inverse_temperature=5.0), samples=2_003, seed=1)
    assert parts.samples == whole.samples == 2_003
    assert abs(parts.mse - whole.mse) < 4 * math.hypot(parts.standard_error, whole.standard_error)


def test_codes() -> None:
    """One-hot and simplex codes keep scores apart; fewer coordinates are a tight frame of the right rank."""
    assert torch.equal(frame_codes(5, 5), torch.eye(5, dtype=torch.float64))
    simplex = frame_codes(5, 4)
    assert torch.allclose(simplex @ simplex.mT, torch.eye(5, dtype=torch.float64) - 0.2, atol=1e-12)
    frame = frame_codes(8, 3, torch.Generator().manual_seed(0))
    assert torch.allclose(frame.mT @ frame, torch.eye(3, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FullRankHead(1), "dim to be a whole number of at least 2"),
        (lambda: FullRankHead(4, inverse_temperature=0.0), "a positive inverse temperature"),
        (lambda: MajorityVote(4, 4), "an odd number of heads"),
        (lambda: MajorityVote(4, 5, points=3), "use PluralityVote"),
        (lambda: LinearRegime(4, gain=0.0), "positive gains"),
        (lambda: LinearRegime(4, gain=math.inf), "positive gains"),
        (lambda: LinearRegime(4, points=3, code_rank=4), "code_rank to be at most 3; got 4; one-hot codes"),
        (lambda: LinearRegime(4, points=8, code_rank=2).predicted_error(), "codes of rank at least N - 1"),
        (lambda: OscillatingSum(4, points=3), "two points and a positive inverse temperature"),
        (lambda: PluralityVote(4, 1, 3), "points to be a whole number of at least 2"),
        (lambda: EqualAngles(0), "heads to be a whole number of at least 1"),
        (lambda: EqualAngles(3, dim=3), "the plane and two points"),
        (lambda: QuantisedQuery(3), "an even number of heads"),
        (
            lambda: PluralityVote(4, 3, 5).build()(torch.zeros(2, 4), torch.zeros(1, 4)),
            "one for each positional code",
        ),
        (lambda: PluralityVote(4, 3, 5).build()(torch.zeros(3, 5), torch.zeros(1, 5)), "points of dimension 4"),
        (lambda: sampled_error(FullRankHead(4), samples=1, seed=0), "samples to be a whole number of at least 2"),
    ],
)
def test_refusals(make: object, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        make()  # type: ignore[operator]
