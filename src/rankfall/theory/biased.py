"""A-thm4: the oscillating target made of 2d^2+1 biased nearest neighbours, its spectrum, and what low rank can do
to it.

With s = <x1-x2, y>, breakpoints b_1 < ... < b_m, m = 2d^2, the target is x1 where an even number of breakpoints lies
below s and x2 elsewhere: psi = +-1 in t = s/sqrt2. One constant head and 2d^2 biased full-rank heads give it exactly.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from rankfall.errors import MOST_HEADS, require, require_count
from rankfall.theory.harmonics import Floats, cumulative, density_at_zero, log_dimension, require_dim
from rankfall.theory.head_bounds import counted_floor, smallest_count
from rankfall.theory.targets import oscillating_breakpoints

WIDEST = 64


def breakpoints(dim: int) -> Floats:
    """b_j / sqrt2 = -1 + 2j/(m+1), j = 1..m, m = 2d^2: evenly spaced over the range of t."""
    require_dim(dim)
    return oscillating_breakpoints(dim).double().numpy() / math.sqrt(2)


@dataclass(frozen=True)
class BiasedSpectrum:
    """E_l = N(d,l) E[psi P_l]^2 for l = 0..top: the target's energy by degree, which sums to one over all degrees."""

    dim: int
    energies: Floats

    @property
    def top(self) -> int:
        return len(self.energies) - 1

    @property
    def tail(self) -> float:
        return max(0.0, 1.0 - math.fsum(self.energies))


@functools.lru_cache(maxsize=8)
def biased_spectrum(dim: int) -> BiasedSpectrum:
    """E[psi P_l] = (2 f_d(0)/(d-1)) sum_j sig_j (1-b^2)^((d-1)/2) P^(d+2)_{l-1}(b),  b = b_j/sqrt2, sig_j = (-1)^j.

    P^(d+2) is the Gegenbauer polynomial of dimension d+2. The recurrence carries sqrt(N(d,l)) along with it: N
    overflows and P vanishes, their product stays of order one. Three quarters of the energy lie below degree pi d^2.
    """
    costs = "the oscillating target's spectrum has some 100 d^2 degrees and 2 d^2 breakpoints"
    require_count("the width d", dim, least=2, most=WIDEST, remedy=costs)
    top = min(125 * dim**2, 60_000)
    b = breakpoints(dim)
    signs = 1.0 - 2.0 * (np.arange(1, len(b) + 1) % 2)
    before = np.zeros_like(b)
    now = math.sqrt(dim) * (1 - b**2) ** ((dim - 1) / 2)
    growth_before = 1.0
    sums = np.empty(top + 1)
    for l in range(1, top + 1):  # noqa: E741
        sums[l] = signs @ now
        growth = math.sqrt((2 * l + dim) * (l + dim - 2) / ((2 * l + dim - 2) * (l + 1)))
        following = ((2 * l - 2 + dim) * b * now - (l - 1) * growth_before * before) * (growth / (l - 1 + dim))
        before, now, growth_before = now, following, growth
    energies = (2 * density_at_zero(dim) / (dim - 1) * sums) ** 2
    energies[0] = _mean_sign(dim, b) ** 2
    return BiasedSpectrum(dim, energies)


def _mean_sign(dim: int, b: Floats) -> float:
    masses = np.diff(np.concatenate([[0.0], cumulative(dim, b), [1.0]]))
    return float(masses[::2].sum() - masses[1::2].sum())


def biased_floor(dim: int, rank: int, heads: int) -> float:
    """Lower bound for any H standard heads of rank r on the oscillating target: (3.1) with E_l for eta_l^2, all l.

    Same hypotheses as the bound on the nearest neighbour (any values, biases on the points); no norm enters.
    """
    spectrum = biased_spectrum(dim)
    require_count("the rank r", rank, most=dim)
    require_count("the number of heads H", heads, least=0, most=MOST_HEADS)
    if rank == dim:
        return 0.0
    l = np.arange(spectrum.top + 1)  # noqa: E741
    log_share = gammaln(rank + l) - gammaln(l + 1) - gammaln(rank) - log_dimension(dim, l)
    return counted_floor(spectrum.energies, spectrum.tail, log_share, heads)


def biased_heads_needed(dim: int, rank: int, error: float) -> int:
    """No layer of rank-r heads reaches `error` on the oscillating target with fewer; 2d^2+1 full-rank heads do."""
    require(
        0 < error <= 0.5,
        required="an error in (0, 0.5], the upper end being the bound at H = 0",
        got=error,
        remedy="above it no head is needed, and nothing reaches zero",
    )
    # Full covering of every computed degree leaves at most half the tail, which the bound cannot tell from zero.
    return smallest_count(lambda heads: biased_floor(dim, rank, heads), error)


@dataclass(frozen=True)
class NormStatement:
    """A-thm4 with A-rem5 on given weights: error stays above 1/40 unless d H max||V||^2 reaches exp(c (d-r)).

    The constant c is not given in the paper, so this is not a bound: it is the c at which the statement would bind.
    """

    log_quantity: float
    """log( d H max||V||^2 ): what the statement compares."""
    deciding_constant: float
    """The statement forbids errors below 1/40 here exactly when its unknown c is above this; infinite at r = d."""


def norm_statement(dim: int, rank: int, heads: int, value_norm: float) -> NormStatement:
    """A-thm4's comparison, without its constants, for a layer whose largest value matrix has norm `value_norm`."""
    require_dim(dim)
    require_count("the number of heads H", heads, most=MOST_HEADS)
    require_count("the rank r", rank, most=dim)
    require(
        value_norm > 0 and math.isfinite(value_norm),
        required="a positive, finite norm of the values",
        got=value_norm,
        remedy="give max ||V_h||",
    )
    log_quantity = math.log(dim * heads) + 2 * math.log(value_norm)
    return NormStatement(log_quantity, log_quantity / (dim - rank) if rank < dim else math.inf)
