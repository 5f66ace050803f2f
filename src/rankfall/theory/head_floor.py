"""A-thm2 made computable: the least mean squared error that ANY H heads of rank r can reach.

Harmonics of degree l that H heads of rank r can produce span at most H m(r,l) of N(d,l) dimensions, and the target's
energy eta_l^2 is spread evenly over all of them. Hence, for two orthonormal points,

    LB(d,r,H) = 1/2 sum_{l odd} eta_l^2 (1 - H m(r,l)/N(d,l))_+                                                  (3.1)

for every standard layer with any values (seen from the query side) and for generalised heads with scalar values (from
the key side). With a skip connection from y the degree-1 term goes. See docs/theory/head-rank.md for the proofs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from rankfall.errors import require_count
from rankfall.theory.harmonics import (
    Floats,
    SignSpectrum,
    dimension,
    invariant_dimension,
    log_invariant_share,
    sign_spectrum,
)
from rankfall.theory.head_class import HeadClass
from rankfall.theory.prefix_floor import prefix_floor
from rankfall.theory.sphere import expected_largest_coordinate

DEFAULT_TOP = 2501


@dataclass(frozen=True)
class Floor:
    """A lower bound on the error. `vacuous` when it says nothing: the floor is zero."""

    heads_class: HeadClass
    heads: int
    mse: float
    baseline: float
    """The bound at zero heads: the error of a layer whose heads do nothing useful."""

    @property
    def vacuous(self) -> bool:
        return self.mse <= 0.0


def mse_floor(heads_class: HeadClass, heads: int, top: int = DEFAULT_TOP) -> Floor:
    """The least error of any `heads` heads of the class, and the error of none; degrees above `top` in one safe
    term.
    """
    require_count("the number of heads H", heads)
    baseline = floor_value(heads_class, 0, top)
    return Floor(heads_class, heads, max(0.0, floor_value(heads_class, heads, top)), baseline)


def floor_value(heads_class: HeadClass, heads: int, top: int = DEFAULT_TOP) -> float:
    """The bound as a bare number, `heads` >= 0; what `heads_needed` inverts."""
    if heads_class.rank == heads_class.dim and heads > 0:
        return 0.0  # a full-rank head represents the target (A-fact): no bound above zero can hold
    if heads_class.points > 2:
        return points_floor(heads_class, heads)
    spectrum = sign_spectrum(heads_class.dim, top)
    shares = _log_shares(heads_class, spectrum)
    floor = counted_floor(spectrum, shares, heads, skip=heads_class.skip)
    if heads_class.generalised and heads_class.values == "matrix":
        floor = max(floor, prefix_floor(spectrum, heads_class.rank, heads, skip=heads_class.skip))
    return floor


def counted_floor(spectrum: SignSpectrum, log_shares: Floats, heads: int, *, skip: bool = False) -> float:
    """1/2 sum_l eta_l^2 (1 - H share_l)_+ with the last share for all degrees above the last.

    Valid because the shares decrease with the degree; 1 - exp(x) is taken as -expm1(x), exact for tiny shares.
    """
    if heads == 0:
        covered = np.full_like(log_shares, -np.inf)
    else:
        covered = np.minimum(math.log(heads) + log_shares, 0.0)
    missing = -np.expm1(covered)
    energies = spectrum.energies
    first = 1 if skip else 0
    return 0.5 * (math.fsum(energies[first:] * missing[first:]) + spectrum.tail * float(missing[-1]))


def _log_shares(heads_class: HeadClass, spectrum: SignSpectrum) -> Floats:
    """log of the share of degree l that one head can cover: m(r,l)/N(d,l), or the three-term form of matrix values.

    For generalised heads <w, V_h w> has degrees 0 and 2, which shifts degrees by two: m(r,l-2)+m(r,l)+m(r,l+2).
    """
    rank, degrees = heads_class.rank, spectrum.degrees
    shares = log_invariant_share(heads_class.dim, rank, degrees)
    if not heads_class.generalised or heads_class.values == "scalar":
        return shares
    l = degrees.astype(np.float64)  # noqa: E741
    below = (l - 1) * l / ((rank + l - 2) * (rank + l - 1)) if rank > 1 else np.ones_like(l)
    below = np.where(degrees == 1, 0.0, below)
    above = (rank + l) * (rank + l + 1) / ((l + 1) * (l + 2))
    return shares + np.log1p(below + above)


def points_floor(heads_class: HeadClass, heads: int) -> float:
    """N >= 3 orthonormal points, standard layers:  E_1 (1-Hr/d)_+ + (1-E_0-E_1)(1 - H m(r,2)/N(d,2))_+.

    E_0 = 1/N and E_1 = d M^2/(N-1) are the two lowest energies of the target, M = E max_i y_i. A skip connection from
    y takes the first term away.
    """
    dim, rank, points = heads_class.dim, heads_class.rank, heads_class.points
    first = dim * expected_largest_coordinate(dim, points) ** 2 / (points - 1)
    linear = max(0.0, 1 - heads * rank / dim) if not heads_class.skip else 0.0
    quadratic = max(0.0, 1 - heads * invariant_dimension(rank, 2) / dimension(dim, 2))
    return first * linear + (1 - 1 / points - first) * quadratic
