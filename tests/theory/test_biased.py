"""The oscillating target: its spectrum against draws, its bound against facts, what A-thm4 says and does not say."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from tests.formulas import soft_error_asymptotic
from tests.sampling import assert_within, draw_problem, mean_and_error

from rankfall.errors import RequestError
from rankfall.mechanism.heads import Heads, attention
from rankfall.theory.biased import biased_floor, biased_heads_needed, biased_spectrum, breakpoints, norm_statement
from rankfall.theory.harmonics import dimension, gegenbauer_at
from rankfall.theory.targets import biased_target, oscillating_breakpoints, uniform_sphere


@pytest.mark.parametrize(("dim", "degree"), [(2, 3), (4, 10), (4, 30), (8, 120), (8, 200)])
def test_energies_against_draws(dim: int, degree: int) -> None:
    t = uniform_sphere((400_000, dim), torch.Generator().manual_seed(degree))[:, 0].contiguous()
    piece = torch.bucketize(t, torch.from_numpy(breakpoints(dim)))
    samples = (1.0 - 2.0 * (piece % 2)) * gegenbauer_at(dim, degree, t)
    mean, error = mean_and_error(samples)
    amplitude = math.sqrt(biased_spectrum(dim).energies[degree] / dimension(dim, degree))
    assert abs(abs(mean) - amplitude) <= 4 * error


@pytest.mark.parametrize("dim", [4, 8, 16])
def test_energy_is_all_there_and_sits_near_pi_d_squared(dim: int) -> None:
    spectrum = biased_spectrum(dim)
    assert 0 < spectrum.tail < 0.02
    assert spectrum.energies[: dim**2].sum() < 0.015
    assert 0.6 < spectrum.energies[: int(math.pi * dim**2)].sum() < 0.8


def test_heads_needed_at_width_8() -> None:
    needed = [biased_heads_needed(8, rank, 0.1) for rank in range(1, 8)]
    assert needed == pytest.approx([1.8e11, 9.0e8, 8.9e6, 1.3e5, 2546, 60, 2], rel=0.02)
    assert biased_heads_needed(8, 8, 0.1) == 1


def test_full_rank_soft_heads() -> None:
    dim = 4
    scale = 30 * (2 * dim**2 + 1) / (2 * math.sqrt(2))
    points, query, _ = draw_problem(20_000, dim)
    target = biased_target(points, query, oscillating_breakpoints(dim))
    gap = ((points[:, 0] - points[:, 1]) * query[:, 0]).sum(-1)
    share = torch.ones_like(gap)
    for place, b in enumerate(oscillating_breakpoints(dim).tolist(), start=1):
        share = share + (-1) ** place * torch.sigmoid(scale * (gap - b))
    output = share[:, None] * points[:, 0] + (1 - share)[:, None] * points[:, 1]
    expected = soft_error_asymptotic(dim, scale)
    assert_within((output - target[:, 0]).square().sum(-1), expected, slack=0.03 * expected)


@pytest.mark.parametrize(("dim", "rank", "count"), [(2, 1, 3), (3, 2, 4), (4, 3, 8)])
def test_nothing_measured_below_the_bound(dim: int, rank: int, count: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    maps = [10 * torch.randn(count, dim, rank, generator=generator, dtype=torch.float64) for _ in range(2)]
    bias = 3 * torch.randn(count, 2, generator=generator, dtype=torch.float64)
    eye = torch.eye(dim, dtype=torch.float64)[None]

    def features(batch: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        points, query, _ = draw_problem(batch, dim, 2, seed)
        each = [
            attention(Heads(maps[0][h : h + 1], maps[1][h : h + 1], eye), query, points, score_bias=bias[h])[:, 0]
            for h in range(count)
        ]
        return torch.cat(each, -1), biased_target(points, query, oscillating_breakpoints(dim))[:, 0]

    inputs, targets = features(8_000, 1)
    solution = torch.linalg.lstsq(inputs, targets).solution
    fresh, wanted = features(20_000, 2)
    mean, error = mean_and_error((fresh @ solution - wanted).square().sum(-1))
    assert mean >= biased_floor(dim, rank, count) - 4 * error


def test_norm_statement_says_what_it_can() -> None:
    said = norm_statement(64, 32, 100, 10.0)
    assert said.log_quantity == pytest.approx(math.log(64 * 100 * 100))
    assert said.deciding_constant == pytest.approx(said.log_quantity / 32)
    assert norm_statement(64, 64, 1, 1.0).deciding_constant == math.inf
    assert norm_statement(64, 32, 100, 20.0).deciding_constant > said.deciding_constant
    assert np.isfinite(said.deciding_constant)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: biased_spectrum(65), "the width d to be at most 64; got 65; the oscillating target"),
        (lambda: biased_heads_needed(4, 2, 0.6), r"an error in \(0, 0.5\]"),
        (lambda: biased_floor(4, 5, 3), "the rank r to be at most 4; got 5"),
        (lambda: norm_statement(4, 2, 3, 0.0), "a positive, finite norm of the values; got 0.0"),
    ],
)
def test_wrong_requests(call, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        call()
