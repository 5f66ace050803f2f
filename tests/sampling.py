"""Numbers drawn from a seed; Monte Carlo with a stated tolerance: whether a closed form lies within the error."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from rankfall.theory.targets import nearest_neighbour, orthonormal_points, uniform_sphere

STANDARD_ERRORS = 4.0


def normal(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Standard normal numbers, drawn in float64 whatever they come in."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def mean_and_error(samples: Tensor) -> tuple[float, float]:
    """The mean of independent samples and one standard error of it."""
    return float(samples.mean()), float(samples.std() / math.sqrt(samples.numel()))


def assert_within(samples: Tensor, expected: float, *, slack: float = 0.0) -> None:
    """The closed form lies within four standard errors (plus `slack`, where it is an approximation)."""
    mean, error = mean_and_error(samples)
    assert abs(mean - expected) <= STANDARD_ERRORS * error + slack, f"{mean} +- {error} against {expected}"


def draw_problem(batch: int, dim: int, points: int = 2, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Orthonormal points (b, n, d), one query each (b, 1, d) and the nearest points (b, 1, d)."""
    generator = torch.Generator().manual_seed(seed)
    frame = orthonormal_points((batch, points, dim), generator)
    query = uniform_sphere((batch, 1, dim), generator)
    return frame, query, nearest_neighbour(frame, query)
