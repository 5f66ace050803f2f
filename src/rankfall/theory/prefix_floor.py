"""The second bound for generalised heads with matrix values: degrees may trade places, but only upwards by two."""

from __future__ import annotations

import functools
import math

import numpy as np

from rankfall.theory.harmonics import SignSpectrum, dimension, invariant_dimension


def prefix_floor(spectrum: SignSpectrum, rank: int, heads: int, *, skip: bool = False) -> float:
    """1/2 sum eta_l^2 (1 - t_l/N(d,l)), t greedy from degree 1 under t_l <= N(d,l) and, for every L,

        sum_{l <= L} t_l <= H sum_{j odd <= L+2} m(r,j).

    Greedy is worst for the bound because eta_l^2/N(d,l) = lambda_l^2 falls with l. Exact integers are needed only
    until the budget binds and keeps binding; from there t_l = H m(r,l+2), whose share of N(d,l) falls with l.
    """
    if heads == 0:
        kept = float(spectrum.energies[0]) if skip else 0.0
        return 0.5 * (1.0 - kept)
    dim = spectrum.dim
    covered = np.ones_like(spectrum.energies)
    budget = heads * invariant_dimension(rank, 1)
    used = 0
    steady = len(covered)
    for index, degree in enumerate(spectrum.degrees.tolist()):
        size, reach, next_size, next_reach = _sizes(dim, rank, degree)
        budget += heads * reach
        taken = min(size, budget - used)
        # With a skip connection degree 1 is free; spending nothing on it leaves later degrees the largest budget.
        used += 0 if skip and degree == 1 else taken
        covered[index] = taken / size
        if used == budget and heads * next_reach <= next_size:
            steady = index + 1
            break
    else:
        return _sum(spectrum, covered, 0.0, skip)
    l = spectrum.degrees[steady:].astype(np.float64)  # noqa: E741
    if len(l) == 0:
        return _sum(spectrum, covered, 1.0 - heads * next_reach / next_size, skip)
    # Share of the first steady degree from exact integers, later ones by the ratio of neighbours.
    first = math.log(heads * invariant_dimension(rank, int(l[0]) + 2)) - math.log(dimension(dim, int(l[0])))
    b = l[:-1]
    steps = np.log(rank + b + 2) + np.log(rank + b + 3) + np.log(b + 1) + np.log(b + 2) + np.log(2 * b + dim - 2)
    steps -= np.log(b + 3) + np.log(b + 4) + np.log(2 * b + dim + 2) + np.log(b + dim - 1) + np.log(b + dim - 2)
    logs = first + np.concatenate([[0.0], np.cumsum(steps)])
    covered[steady:] = np.exp(np.minimum(logs, 0.0))
    return _sum(spectrum, covered, float(1.0 - covered[-1]), skip)


def _sum(spectrum: SignSpectrum, covered: np.ndarray, tail_missing: float, skip: bool) -> float:
    missing = (1.0 - covered) * spectrum.energies
    first = 1 if skip else 0
    return 0.5 * (math.fsum(missing[first:]) + spectrum.tail * tail_missing)


@functools.lru_cache(maxsize=100_000)
def _sizes(dim: int, rank: int, degree: int) -> tuple[int, int, int, int]:
    """N(d,l), m(r,l+2) and the same at the next odd degree: asked for again at every step of a bisection."""
    following = degree + 2
    return (
        dimension(dim, degree),
        invariant_dimension(rank, following),
        dimension(dim, following),
        invariant_dimension(rank, following + 2),
    )
