"""The error of H random heads predicted without drawing any: why the curves of A-rf fall and where they level off.

Heads are vectors with energy a_c spread evenly over components c of dimension D_c. The span of H random ones leaves
the share f_c = k/(k + H a_c/D_c) of component c, where k solves k = sum_c a_c f_c (the deterministic equivalent of
a random projection; exact as dimensions grow). A component is learnt once H exceeds about D_c k/a_c heads.
Independent queries and keys: components are pairs of degrees, a = eta_l^2 eta_l'^2, D = N(d,l) N(d,l'), and the
target lies in the pairs (l,l). So the first plateau (degree 1) comes at H about d^2, and leaving it takes about
N(d,3)^2 = d^6/36 heads.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from rankfall.errors import MOST_HEADS, require, require_count
from rankfall.theory.hardmax import vote_moments
from rankfall.theory.harmonics import Floats, average, gegenbauer_at, log_dimension, sign_spectrum

TOP = 101


def predicted_error(design: str, dim: int, heads: int) -> float:
    """E||output - f||^2 of the best combination of H random heads, design independent, aligned or signed."""
    require_count("the number of heads H", heads, most=MOST_HEADS)
    if design == "independent":
        return _independent(dim, heads)
    require(
        design in ("aligned", "signed"),
        required="a design with a prediction: independent, aligned or signed",
        got=design,
        remedy="measure the others with `fit`",
    )
    first, second = vote_moments(dim)
    kept = _unlearnt_energy(*_square_components(dim), heads, total=1 - second)
    power = 1 / (second + kept / heads)
    if design == "aligned":
        return 0.5 * (2 - (1 + first) ** 2 * power / (1 + power))
    return 0.5 * (kept / (kept + heads) + 1 - first**2 * power)


def _independent(dim: int, heads: int) -> float:
    spectrum = sign_spectrum(dim, TOP)
    energies, logs = spectrum.energies, log_dimension(dim, spectrum.degrees)
    log_weights = np.log(energies)[:, None] + np.log(energies)[None, :]
    log_sizes = logs[:, None] + logs[None, :]
    kept = _unlearnt_energy(np.exp(log_weights).ravel(), (log_weights - log_sizes).ravel(), heads, total=1.0)
    left = kept / (kept + heads * np.exp(2 * np.log(energies) - 2 * logs))
    return 0.5 * (kept / (kept + heads) + math.fsum(energies * left) + spectrum.tail)


@functools.lru_cache(maxsize=32)
def _square_components(dim: int) -> tuple[Floats, Floats]:
    """Energy of ((2/pi) asin)^2 at degrees 2, 4, ..., the kernel of k = q or -q, and log(energy/dimension)."""
    degrees = np.arange(2, TOP, 2)
    moments = []
    for degree in degrees.tolist():
        moments.append(average(lambda t, n=degree: (2 / math.pi * np.arcsin(t)) ** 2 * gegenbauer_at(dim, n, t), dim))
    # The energies are positive in exact arithmetic; those below rounding carry nothing.
    logs = np.log(np.maximum(moments, 1e-300)) + log_dimension(dim, degrees)
    keep = np.array(moments) > 1e-15
    return np.exp(logs[keep]), (logs - log_dimension(dim, degrees))[keep]


def _unlearnt_energy(energies: Floats, log_densities: Floats, heads: int, total: float) -> float:
    """k with k = sum_c a_c k/(k + H a_c/D_c). What `energies` lack of `total` is of degrees too high to learn."""
    density = heads * np.exp(log_densities)
    rest = max(0.0, total - math.fsum(energies))
    low, high = 1e-300, 1.0
    for _ in range(200):
        middle = math.sqrt(low * high)
        if float(np.sum(energies / (middle + density))) + rest / middle > 1:
            low = middle
        else:
            high = middle
    return high
