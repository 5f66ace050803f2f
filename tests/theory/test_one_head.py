"""One full-rank head: the exact integral against simulated softmax attention, the asymptotic forms against it."""

from __future__ import annotations

import math

import pytest
import torch
from scipy.special import zeta
from tests.formulas import full_rank_asymptotic
from tests.sampling import assert_within, draw_problem

from rankfall.errors import RequestError
from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.harmonics import expected_largest_coordinate, expected_maximum
from rankfall.theory.one_head import M0, full_rank_error, many_points_asymptotic
from rankfall.theory.targets import nearest_neighbour, uniform_sphere

M2 = 1.5 * float(zeta(3)) - math.pi**2 / 6


def full_rank_two_term(dim: int, scale: float) -> float:
    """The asymptotic form with its next term: times 1 - (d-3)/(4c^2) M2/M0. Good once c^2 is well above d."""
    return full_rank_asymptotic(dim, scale) * (1 - (dim - 3) / (4 * scale**2) * M2 / M0)


def full_rank_head(dim: int, scale: float) -> Heads:
    identity = torch.eye(dim, dtype=torch.float64)[None]
    return Heads(identity, identity, identity, scale=scale)


@pytest.mark.parametrize(("dim", "scale"), [(2, 3.0), (3, 2.0), (8, 30.0), (64, 10.0), (64, 300.0)])
def test_exact_error_against_attention(dim: int, scale: float) -> None:
    points, query, nearest = draw_problem(20_000, dim)
    squared = (attention(full_rank_head(dim, scale), query, points) - nearest).square().sum((-1, -2))
    assert_within(squared, full_rank_error(dim, scale))


def test_known_numbers_at_64() -> None:
    assert full_rank_error(64, 10) == pytest.approx(0.155191, abs=1e-6)
    assert full_rank_asymptotic(64, 10) == pytest.approx(0.1723, abs=1e-4)
    assert full_rank_two_term(64, 10) == pytest.approx(0.1508, abs=1e-4)


@pytest.mark.parametrize("dim", [3, 8, 64, 512, 4096])
def test_asymptotic_is_an_upper_bound_and_the_limit(dim: int) -> None:
    for scale in (1.0, 10.0, 100.0, 1e4, 1e6):
        assert full_rank_error(dim, scale) <= full_rank_asymptotic(dim, scale) * (1 + 1e-12)
    far = 300 * math.sqrt(dim)
    assert full_rank_error(dim, far) == pytest.approx(full_rank_asymptotic(dim, far), rel=1e-5)
    near = 10 * math.sqrt(dim)
    off = [
        abs(form(dim, near) / full_rank_error(dim, near) - 1) for form in (full_rank_two_term, full_rank_asymptotic)
    ]
    assert dim == 3 or off[0] < off[1] / 10


@pytest.mark.parametrize(("points", "expected"), [(2, 0.56419), (3, 0.84628), (16, 1.76599), (64, 2.34373)])
def test_expected_maximum(points: int, expected: float) -> None:
    assert expected_maximum(points) == pytest.approx(expected, abs=6e-6)
    query = uniform_sphere((20_000, 64), torch.Generator().manual_seed(points))
    assert_within(query[:, :points].amax(-1), expected_largest_coordinate(64, points))


@pytest.mark.parametrize(("dim", "points", "independent"), [(16, 3, False), (16, 8, True), (32, 16, False)])
def test_many_points_against_attention(dim: int, points: int, independent: bool) -> None:
    scale = 30 * math.sqrt(dim)
    frame, query, nearest = draw_problem(20_000, dim, points)
    if independent:
        frame = uniform_sphere(frame.shape, torch.Generator().manual_seed(1))
        nearest = nearest_neighbour(frame, query)
    squared = (attention(full_rank_head(dim, scale), query, frame) - nearest).square().sum((-1, -2))
    # The asymptotic form is up to 3 % low at this scale.
    expected = many_points_asymptotic(dim, scale, points, independent=independent)
    assert_within(squared, expected, slack=0.03 * expected)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: full_rank_error(8, 0.0), "the scale c of the scores to be positive and finite; got 0.0"),
        (lambda: many_points_asymptotic(4, 10.0, 5), "the number of orthonormal points N to be at most 4; got 5"),
    ],
)
def test_wrong_requests(call, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()
