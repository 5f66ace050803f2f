"""Kernels of rank-1 hardmax heads against hardmax attention that really chooses, and the exact error of head sets."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.formulas import agreement, aligned_limit, best_weights
from tests.sampling import assert_within, draw_problem

from rankfall.errors import RequestError
from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.hardmax import signed_limit, target_overlap, target_overlap_cut, vote_moments
from rankfall.theory.head_bounds import plateau
from rankfall.theory.random_features.kernel import draw_heads


def outputs(queries: torch.Tensor, keys: torch.Tensor, points: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    """Each head's own output (h, b, d), one head at a time through the foundation's attention."""
    identity = torch.eye(queries.shape[-1], dtype=torch.float64)[None]
    each = [
        attention(Heads(q[None, :, None], k[None, :, None], identity), query, points, kind="hardmax")
        for q, k in zip(queries, keys, strict=True)
    ]
    return torch.stack(each)[:, :, 0]


@pytest.mark.parametrize("dim", [2, 3, 8, 64])
def test_kernels_against_attention(dim: int) -> None:
    queries, keys = draw_heads("tilted", dim, 3)
    points, query, nearest = draw_problem(20_000, dim)
    chosen = outputs(queries, keys, points, query)
    kernel = agreement(queries, keys, queries, keys)
    overlap = target_overlap((queries * keys).sum(-1), dim)
    for h in range(3):
        assert_within((chosen[h] * nearest[:, 0]).sum(-1), float(overlap[h]))
        assert_within((chosen[h] * chosen[h - 1]).sum(-1), float(kernel[h, h - 1]))
    torch.testing.assert_close(kernel.diagonal(), torch.ones(3, dtype=torch.float64), atol=1e-7, rtol=0)


def planar_target_overlap(angle: np.ndarray) -> np.ndarray:
    """b at d=2 in closed form: 1/2 +- (1/4 - (theta/pi)^2), theta the angle of q and k folded to [0, pi/2]."""
    turned = np.abs(np.angle(np.exp(1j * np.asarray(angle))))
    folded = np.minimum(turned, math.pi - turned)
    return np.asarray(0.5 + np.where(turned <= math.pi / 2, 1.0, -1.0) * (0.25 - (folded / math.pi) ** 2))


def test_plane_has_a_closed_form() -> None:
    angles = np.linspace(-7, 7, 57)
    series = target_overlap(torch.from_numpy(np.cos(angles)), 2, top=4001)
    np.testing.assert_allclose(series.numpy(), planar_target_overlap(angles), atol=target_overlap_cut(2, 4001))


@pytest.mark.parametrize("dim", [3, 8, 64])
def test_head_with_equal_query_and_key(dim: int) -> None:
    first, _ = vote_moments(dim)
    at_one = float(target_overlap(torch.ones(1, dtype=torch.float64), dim)[0])
    assert at_one == pytest.approx(0.5 + first / 2, abs=1e-7)
    assert target_overlap_cut(dim) < 6e-8


def test_exact_error_of_a_set_against_attention() -> None:
    queries, keys = draw_heads("independent", 6, 40)
    points, query, nearest = draw_problem(20_000, 6, seed=3)
    fit = best_weights(queries, keys)
    together = torch.einsum("h,hbd->bd", fit.weights, outputs(queries, keys, points, query))
    assert_within((together - nearest[:, 0]).square().sum(-1), fit.error)


def test_known_sets() -> None:
    queries, keys = draw_heads("tilted", 16, 1)
    right = float(target_overlap((queries * keys).sum(-1), 16)[0])
    assert best_weights(queries, keys).error == pytest.approx(1 - right**2, abs=1e-10)
    repeated = [torch.cat([one, one]) for one in draw_heads("signed", 8, 20)]
    assert best_weights(*repeated).error == pytest.approx(best_weights(*draw_heads("signed", 8, 20)).error, abs=1e-8)


@pytest.mark.parametrize("dim", [4, 16, 64])
def test_limits_of_two_designs(dim: int) -> None:
    assert plateau(dim, 1) < signed_limit(dim) < aligned_limit(dim)
    for design, limit in (("aligned", aligned_limit(dim)), ("signed", signed_limit(dim))):
        errors = [best_weights(*draw_heads(design, dim, heads)).error for heads in (64, 512)]
        assert limit <= errors[1] <= errors[0]
    assert aligned_limit(64) == pytest.approx(0.4375, abs=1e-4)
    assert signed_limit(64) == pytest.approx(0.18084, abs=1e-5)


def test_keys_that_are_not_unit_vectors_are_refused() -> None:
    queries, keys = draw_heads("independent", 8, 4)
    with pytest.raises(RequestError, match="keys to be unit vectors; got a length that differs from one by"):
        best_weights(queries, keys * math.sqrt(2))
