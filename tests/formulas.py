"""Closed forms and a plain solver that no command prints: what the tests compare with."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rankfall.theory.biased import breakpoints
from rankfall.theory.hardmax import require_unit, target_overlap, vote_moments
from rankfall.theory.harmonics import density_at_zero, expected_largest_coordinate, expected_maximum
from rankfall.theory.one_head import M0


def full_rank_asymptotic(dim: int, scale: float) -> float:
    """2 sqrt2 f_d(0) (ln2 - 1/2)/c ~ 0.218 sqrt(d)/c: the limit for large c and, for d >= 3, an upper bound at
    every c.
    """
    return 2 * math.sqrt(2) * density_at_zero(dim) * M0 / scale


def single_plurality_success(dim: int, points: int) -> float:
    """One head's accuracy among N orthonormal points: about 1/N + sqrt(2/pi) (m_N/(N-1)) E max_i y_i (A-conj8)."""
    slope = math.sqrt(2 / math.pi) * expected_maximum(points) / (points - 1)
    return 1 / points + slope * expected_largest_coordinate(dim, points)


def soft_error_asymptotic(dim: int, scale: float) -> float:
    """Error of the exact sum when its heads are softmax of scale c: (4(ln2-1/2)/c) sum_j f_s(b_j), for c*spacing >=
    10.

    f_s(b) = f_d(b/sqrt2)/sqrt2 is the density of s.
    """
    t = breakpoints(dim)
    density = density_at_zero(dim) * (1 - t**2) ** ((dim - 3) / 2) / math.sqrt(2)
    return 4 * M0 / scale * float(density.sum())


def ring_second_eigenvalue(width: int, n: int) -> float:
    """Closed form for the ring: max over k of |1 + 2 sum_{j<=w} cos(2 pi k j / n)| / (2w + 1), for 2w + 1 <= n."""
    modes = np.arange(1, n)[:, None] * np.arange(1, width + 1)[None, :]
    return float(np.abs(1 + 2 * np.cos(2 * math.pi * modes / n).sum(axis=1)).max() / (2 * width + 1))


def aligned_limit(dim: int) -> float:
    """H -> infinity with q = k for every head: 1/2 (2 - (1+B1)^2/(1+B2)). Poor (d=64: .4375), for the weights must
    sum to about one and so cannot grow."""
    first, second = vote_moments(dim)
    return 0.5 * (2 - (1 + first) ** 2 / (1 + second))


def agreement(queries: Tensor, keys: Tensor, other_queries: Tensor, other_keys: Tensor) -> Tensor:
    """C_hh' = E<head, head'> = P(same choice) = 1/2 + (2/pi^2) asin<q,q'> asin<k,k'>; (h, d) and (g, d) to (h, g)."""
    beside = torch.asin((queries @ other_queries.mT).clamp(-1, 1))
    across = torch.asin((keys @ other_keys.mT).clamp(-1, 1))
    return 0.5 + (2 / math.pi**2) * beside * across


@dataclass(frozen=True)
class HeadFit:
    """The best weights of a set of heads and their exact error."""

    weights: Tensor
    error: float


def best_weights(queries: Tensor, keys: Tensor, ridge: float = 1e-12) -> HeadFit:
    """Best combination a of the heads (h, d) by a dense eigendecomposition of C: error 1 - 2 a.b + a.C a."""
    require_unit(queries, "queries")
    require_unit(keys, "keys")
    queries, keys = queries.double(), keys.double()
    kernel = agreement(queries, keys, queries, keys)
    # asin keeps half its digits next to one, and a head agrees with itself exactly.
    kernel.diagonal().fill_(1.0 + ridge)
    overlap = target_overlap((queries * keys).sum(-1), queries.shape[-1])
    values, vectors = torch.linalg.eigh(kernel)
    # Two equal heads make C singular: their direction carries nothing, and the ridge keeps its weight finite.
    weights = vectors @ ((vectors.mT @ overlap) / values.clamp_min(ridge))
    return HeadFit(weights, float(1 - 2 * weights @ overlap + weights @ (kernel @ weights)))
