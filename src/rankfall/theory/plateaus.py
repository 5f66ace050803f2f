"""Plateaus: the error that is left when every harmonic up to a degree is represented and nothing above it."""

from __future__ import annotations

import math

from scipy.special import gammaln

from rankfall.errors import require
from rankfall.theory.harmonics import require_dim, sign_spectrum


def plateau(dim: int, degree: int) -> float:
    """1/2 (1 - sum over odd l <= degree of eta_l^2): where the error levels off once degree l is exhausted (A-rf).

    For N=2 orthonormal points, error summed over coordinates. degree 1 is what the best linear votes reach.
    """
    require(
        degree >= 1 and degree % 2 == 1,
        required="the degree of a plateau to be odd and positive",
        got=degree,
        remedy="the target has odd degrees only: give 1, 3, 5, ...",
    )
    return 0.5 * sign_spectrum(dim, degree).tail


def limiting_plateau(degree: int) -> float:
    """The plateau as d grows without bound: eta_l^2 -> (2/pi) C(l-1, (l-1)/2) / (2^(l-1) l)."""
    energies = (math.comb(l - 1, (l - 1) // 2) / (2 ** (l - 1) * l) for l in range(1, degree + 1, 2))  # noqa: E741
    return 0.5 * (1.0 - 2 / math.pi * math.fsum(energies))


def tail_constant(dim: int) -> float:
    """K_d with 1 - sum_{l<=L} eta_l^2 ~ K_d / L at fixed d:  K_d = (Gamma(d/2) 2^(d/2)/pi)^2 / Gamma(d-1)."""
    require_dim(dim)
    root = gammaln(dim / 2) + dim / 2 * math.log(2) - math.log(math.pi)
    return math.exp(2 * root - gammaln(dim - 1))
