"""The target functions against their definitions, and the laws of the points against what is known of them."""

from __future__ import annotations

import math

import pytest
import torch

from rankfall.errors import RequestError
from rankfall.theory.targets import (
    biased_target,
    farthest_neighbour,
    nearest_neighbour,
    orthonormal_points,
    oscillating_breakpoints,
    select,
    uniform_sphere,
)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize(("n", "d", "m"), [(2, 3, 1), (7, 4, 5), (64, 16, 3)])
def test_nearest_is_least_distance(n: int, d: int, m: int) -> None:
    rng = generator(n)
    points, queries = uniform_sphere((20, n, d), rng), uniform_sphere((20, m, d), rng)
    distances = torch.cdist(queries, points)
    assert torch.equal(nearest_neighbour(points, queries), select(points, distances.argmin(-1)))
    assert torch.equal(farthest_neighbour(points, queries), select(points, distances.argmax(-1)))


def test_farthest_of_the_points_themselves_is_never_themselves() -> None:
    points = uniform_sphere((50, 8, 4), generator())
    answers = farthest_neighbour(points)
    assert answers.shape == points.shape
    assert torch.linalg.vector_norm(answers - points, dim=-1).min() > 0.5


def test_queries_broadcast_over_shared_points() -> None:
    rng = generator(1)
    points, queries = uniform_sphere((6, 5), rng), uniform_sphere((3, 4, 2, 5), rng)
    assert nearest_neighbour(points, queries).shape == (3, 4, 2, 5)
    assert torch.equal(nearest_neighbour(points, queries)[1, 2], nearest_neighbour(points, queries[1, 2]))


def test_biased_target_counts_breakpoints() -> None:
    points = torch.eye(3, dtype=torch.float64)[:2]
    breakpoints = torch.tensor([-0.5, 0.0, 0.5], dtype=torch.float64)
    gaps = torch.tensor([-0.9, -0.2, 0.3, 0.9], dtype=torch.float64)
    queries = torch.stack([gaps, 0 * gaps, 0 * gaps], dim=-1)
    expected = points[torch.tensor([0, 1, 0, 1])]
    assert torch.equal(biased_target(points, queries, breakpoints), expected)


def test_biased_target_oscillates_2d2_times_and_is_not_symmetric() -> None:
    d = 4
    points = orthonormal_points((2, d), generator(2))
    w = (points[0] - points[1]) / math.sqrt(2)
    t = torch.linspace(-1, 1, 20001, dtype=torch.float64).unsqueeze(-1)
    first = (biased_target(points, t * w) - points[0]).abs().sum(-1) < 1e-9
    assert int((first[1:] != first[:-1]).sum()) == 2 * d * d
    assert len(oscillating_breakpoints(d)) == 2 * d * d
    swapped = biased_target(points.flip(0), t * w)
    assert not torch.allclose(swapped, biased_target(points, t * w))


@pytest.mark.parametrize("shape", [(100, 2, 3), (10, 16, 16), (4, 64)])
def test_orthonormal_to_rounding(shape: tuple[int, ...]) -> None:
    points = orthonormal_points(shape, generator(3))
    gram = points @ points.mT
    assert (gram - torch.eye(shape[-2], dtype=torch.float64)).abs().max() < 1e-14


def test_frames_are_uniform() -> None:
    """Every coordinate of every point has mean 0 and variance 1/d; 40,000 draws, 5 standard errors."""
    d, draws = 5, 40_000
    for points in (orthonormal_points((draws, 3, d), generator(4)), uniform_sphere((draws, 3, d), generator(5))):
        assert points.mean(0).abs().max() < 5 * math.sqrt(1 / (d * draws))
        # the square of a coordinate is Beta(1/2, (d-1)/2): variance 2(d-1)/(d^2 (d+2))
        error = math.sqrt(2 * (d - 1) / (d**2 * (d + 2)) / draws)
        assert (points.square().mean(0) - 1 / d).abs().max() < 5 * error


def test_refusals() -> None:
    with pytest.raises(RequestError, match="orthonormal points to number at least one and at most the dimension"):
        orthonormal_points((5, 4))
    with pytest.raises(RequestError, match="two points for the biased target"):
        biased_target(torch.zeros(3, 4), torch.zeros(1, 4))
    with pytest.raises(RequestError, match="d to be a whole number of at least 2"):
        oscillating_breakpoints(1)
