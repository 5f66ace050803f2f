"""Rank-1 hardmax heads on two orthonormal points: exact kernels, the best weights, the exact error of a set of heads.

Head (q, k) attends to argmax_i <k, x_i><q, y>, so its vote is s = sgn<k,w> sgn<q,y> with w = (x1-x2)/sqrt2. Weights
multiply whole heads (scalar values v_h), and the error is E||output - f||^2 summed over coordinates, as everywhere.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from rankfall.errors import require
from rankfall.theory.harmonics import average, gegenbauer, require_dim, sign_spectrum

KERNEL_DEGREE = 501


def require_unit(heads: Tensor, name: str) -> None:
    """The kernels below are those of directions; a key of another length would be silently wrong."""
    lengths = torch.linalg.vector_norm(heads, dim=-1)
    worst = float((lengths - 1).abs().max()) if heads.numel() else 0.0
    require(
        worst < 1e-5,
        required=f"{name} to be unit vectors",
        got=f"a length that differs from one by {worst:.3g}",
        remedy="divide each by its length: hardmax heads do not see it",
    )


def target_overlap(alignment: Tensor, dim: int, top: int | None = None) -> Tensor:
    """b_h = E<head, f> = P(head right) = 1/2 + 1/2 sum_{l odd} eta_l^2 lambda_l P_l(<q,k>); alignment = <q,k>.

    Cut at `top`, by default the first of 31, 101, 501 that leaves out less than 1e-13, or the last (5e-8 at d=3);
    `target_overlap_cut` bounds what is left out.
    """
    spectrum = sign_spectrum(dim, _kernel_degree(dim) if top is None else top)
    weights = spectrum.energies * spectrum.coefficients
    total = torch.zeros_like(alignment)
    for degree, polynomial in enumerate(gegenbauer(dim, spectrum.top, alignment)):
        if degree % 2:
            total = total + float(weights[degree // 2]) * polynomial
    return 0.5 + 0.5 * total


def _kernel_degree(dim: int) -> int:
    return next((top for top in (31, 101) if target_overlap_cut(dim, top) < 1e-13), KERNEL_DEGREE)


def target_overlap_cut(dim: int, top: int = KERNEL_DEGREE) -> float:
    """An upper bound on the truncation error of `target_overlap`: 1/2 |lambda_{top+2}| (1 - sum_{l<=top} eta_l^2)."""
    longer = sign_spectrum(dim, top + 2)
    return 0.5 * math.exp(longer.log_coefficients[-1]) * sign_spectrum(dim, top).tail


def vote_moments(dim: int) -> tuple[float, float]:
    """B1 = (2/pi) E asin|t| and B2 = (4/pi^2) E asin^2 t: how far heads with q = k agree with f and each other."""
    require_dim(dim)
    first = 2 / math.pi * average(np.arcsin, dim)
    second = 4 / math.pi**2 * average(lambda t: np.arcsin(t) ** 2, dim)
    return first, second


def signed_limit(dim: int) -> float:
    """H -> infinity with k = q or -q at random: 1/2 (1 - B1^2/B2), a little above the plateau of degree one."""
    first, second = vote_moments(dim)
    return 0.5 * (1 - first**2 / second)
