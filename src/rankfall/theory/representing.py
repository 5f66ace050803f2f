"""A-fig5: the weight function u that writes the target as an integral over rank-1 hardmax heads.

    sgn<w,y> = E_{q,k} [ u(<q,k>) sgn<k,w> sgn<q,y> ],   q and k uniform and independent on S^(d-1).

Each sign turns a harmonic of degree l into lambda_l times itself (Funk and Hecke), so u = sum_l u_l P_l needs
u_l lambda_l^2 = N(d,l) lambda_l, that is u_l = N(d,l)/lambda_l. These grow like l^(3d/2-2) with alternating signs:
u is not a function but the limit of ever higher peaks at 0 and pi, and any finite set of heads pays for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from rankfall.theory.harmonics import Floats, average, gegenbauer, gegenbauer_at, log_dimension, sign_spectrum

Scaling = Literal["representing", "published"]


@dataclass(frozen=True)
class WeightFunction:
    """u at given angles as `values` times exp(`log_scale`), so that wide tokens do not overflow."""

    dim: int
    top: int
    angles: Floats
    values: Floats
    log_scale: float

    @property
    def numbers(self) -> Floats:
        """u itself; infinite where it exceeds the largest float64."""
        with np.errstate(over="ignore"):
            return np.asarray(self.values * np.exp(self.log_scale))

    @property
    def log10_peak(self) -> float:
        """log10 of the largest |u| over the angles."""
        return float((np.log(np.abs(self.values).max()) + self.log_scale) / np.log(10))


def weight_function(dim: int, angles: Floats, top: int = 50, scaling: Scaling = "representing") -> WeightFunction:
    """u over the angle between q and k, cut at degree `top`.

    scaling "representing": u_l = N(d,l)/lambda_l, which represents the target (checked by quadrature in the tests).
    scaling "published": u_l = N(d,l)^(3/2)/lambda_l, one factor sqrt(N) more, which alone gives the published peaks.
    Polynomials come from the three-term recurrence, so each value is good to about 1e-13 of the local envelope.
    """
    spectrum = sign_spectrum(dim, top)
    power = 1.0 if scaling == "representing" else 1.5
    logs = power * log_dimension(dim, spectrum.degrees) - spectrum.log_coefficients
    log_scale = float(logs.max())
    weights = spectrum.signs * np.exp(logs - log_scale)
    return WeightFunction(dim, spectrum.top, np.asarray(angles), _series(dim, weights, np.cos(angles)), log_scale)


def cut_sign(dim: int, overlap: Floats, top: int = 50) -> Floats:
    """sum_{l<=top} N(d,l) lambda_l P_l(t): the part of sgn(t) that the cut u represents."""
    spectrum = sign_spectrum(dim, top)
    logs = log_dimension(dim, spectrum.degrees) + spectrum.log_coefficients
    return _series(dim, spectrum.signs * np.exp(logs), np.asarray(overlap, dtype=np.float64))


def _series(dim: int, odd_weights: Floats, x: Floats) -> Floats:
    total = np.zeros_like(x)
    for degree, polynomial in enumerate(gegenbauer(dim, 2 * len(odd_weights) - 1, x)):
        if degree % 2:
            total = total + odd_weights[degree // 2] * polynomial
    return np.asarray(total)


def represented_sign(dim: int, overlap: Floats, top: int = 50) -> Floats:
    """E_{q,k}[u(<q,k>) sgn<k,w> sgn<q,y>] at <w,y> = t by quadrature: that the cut u represents the cut target.

    Averaging P_l(<q,k>) against one sign gives E[sgn(t) P_l(t)] times P_l (Funk and Hecke). That factor is integrated
    here, not taken from the closed form from which u was built.
    """
    spectrum = sign_spectrum(dim, top)
    logs = log_dimension(dim, spectrum.degrees) - spectrum.log_coefficients
    transforms = _sign_transforms(dim, spectrum.top)
    weights = spectrum.signs * np.exp(logs) * transforms**2
    return _series(dim, weights, np.asarray(overlap, dtype=np.float64))


def _sign_transforms(dim: int, top: int) -> Floats:
    """E[sgn(t) P_l(t)] at odd degrees by quadrature: Funk and Hecke's factor of one average over a sign."""
    return np.array([average(lambda t, p=p: gegenbauer_at(dim, p, t), dim, 1 / top) for p in range(1, top + 1, 2)])
