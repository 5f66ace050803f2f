"""The representing function against 40-digit arithmetic, against draws of heads, and its published peaks."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from tests.sampling import assert_within

from rankfall.figures.base import published
from rankfall.theory.harmonics import dimension, gegenbauer_at
from rankfall.theory.representing import cut_sign, represented_sign, weight_function
from rankfall.theory.targets import uniform_sphere


@pytest.mark.parametrize("dim", [3, 4, 6, 8, 64])
def test_values_against_forty_digits(dim: int) -> None:
    angles = np.array([0.0, 0.01, 0.3, 1.1, 1.57, 2.9, math.pi])
    ours = weight_function(dim, angles, 50).numbers
    with mpmath.workdps(40):
        for angle, value in zip(angles, ours, strict=True):
            x = mpmath.cos(mpmath.mpf(float(angle)))
            terms = []
            for degree in range(1, 51, 2):
                sign = -1 if (degree - 1) // 2 % 2 else 1
                coefficient = sign * mpmath.beta(mpmath.mpf(degree) / 2, mpmath.mpf(dim) / 2) / mpmath.pi
                terms.append(dimension(dim, degree) / coefficient * gegenbauer_at(dim, degree, x))
            envelope = max(abs(term) for term in terms)
            # Relative to the largest term; the angle's own rounding turns cos(angle) by 1e-16.
            assert abs(value - float(sum(terms))) <= 1e-11 * float(envelope)


@pytest.mark.parametrize("row", published("amsel_fig5.csv"), ids=lambda row: f"d={row['dim']}")
def test_published_peaks(row: dict[str, str]) -> None:
    angles = np.array([0.0, math.pi])
    peaks = weight_function(int(row["dim"]), angles, int(row["degree"]), "published").numbers
    assert np.abs(peaks) == pytest.approx(float(row["peak"]), rel=0.01)
    assert peaks[0] == -peaks[1]


@pytest.mark.parametrize(("dim", "top"), [(3, 5), (4, 3), (8, 1)])
def test_heads_weighted_by_u_add_up_to_the_target(dim: int, top: int) -> None:
    generator = torch.Generator().manual_seed(dim)
    w, y = torch.eye(dim, dtype=torch.float64)[0], torch.zeros(dim, dtype=torch.float64)
    t = 0.6
    y[:2] = torch.tensor([t, math.sqrt(1 - t**2)])
    q, k = uniform_sphere((200_000, dim), generator), uniform_sphere((200_000, dim), generator)
    angle = torch.acos((q * k).sum(-1).clamp(-1, 1)).numpy()
    weights = torch.from_numpy(weight_function(dim, angle, top).numbers)
    assert_within(weights * (k @ w).sign() * (q @ y).sign(), float(cut_sign(dim, np.array(t), top)))


@pytest.mark.parametrize("dim", [4, 8, 64, 512])
def test_cut_function_represents_the_cut_target(dim: int) -> None:
    overlaps = np.linspace(-0.9, 0.9, 19)
    np.testing.assert_allclose(represented_sign(dim, overlaps), cut_sign(dim, overlaps), atol=1e-9)
    assert np.abs(cut_sign(3, np.array([0.5]), 2001) - 1).max() < 1e-2


def test_wide_tokens_do_not_overflow() -> None:
    wide = weight_function(4096, np.array([0.0, 1.0]), 301, "published")
    assert wide.log10_peak > 400
    assert np.isfinite(wide.values).all()
    assert np.isinf(wide.numbers[0])
