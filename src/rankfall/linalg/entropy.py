"""The entropy of a spectrum without its eigenvalues.

x log x = -integral of log(x + t) over t > 0, up to a linear function. So a few terms w log(x + t), with shifts t that
crowd towards zero, follow it closely on all of [0, 1], and their sums over a spectrum are logarithms of determinants
of shifted matrices: O(n) each for a tridiagonal one.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from rankfall.linalg.lapack import Vector, tridiagonal_eigenvalues, tridiagonal_pivots

# With these shifts the terms leave no more than 1e-12 of x log x anywhere on [0, 1].
SHIFTS = 28
LARGEST_SHIFT = 8.0
CROWDING = 6.5
# Where the weights are fitted: below the smallest x everything is linear, as the smallest shift is 6e-12.
SMALLEST_FITTED = 1e-18
POINTS_FITTED = 1500


def entropy(diagonal: Vector, off: Vector) -> float:
    """-sum p log p over the eigenvalues p >= 0 of a symmetric tridiagonal matrix of trace one, O(n)."""
    shifts, weights, polynomial = x_log_x()
    pivots = tridiagonal_pivots(diagonal + shifts[:, None], off)
    if pivots is None:
        return _entropy_of(tridiagonal_eigenvalues(diagonal, off))
    moments = np.array([diagonal.size, diagonal.sum(), (diagonal**2).sum() + 2.0 * (off**2).sum()])
    return -float(weights @ np.log(pivots, out=pivots).sum(axis=1) + polynomial @ moments)


def _entropy_of(shares: Vector) -> float:
    positive = shares[shares > 0]
    return -float(positive @ np.log(positive))


@cache
def x_log_x() -> tuple[Vector, Vector, Vector]:
    """Shifts t, weights w and coefficients c: x log x = c_0 + c_1 x + c_2 x^2 + sum w_j log(x + t_j) on [0, 1]."""
    steps = np.sqrt(np.arange(1, SHIFTS + 1))
    shifts = LARGEST_SHIFT * np.exp(CROWDING * (steps - steps[-1]))
    x = np.concatenate([[0.0], np.geomspace(SMALLEST_FITTED, 1.0, POINTS_FITTED)])
    terms = np.concatenate([np.stack([np.ones_like(x), x, x**2], axis=1), np.log(x[:, None] + shifts)], axis=1)
    # A shift's weight is about the distance to the next, which is about the shift.
    sizes = np.concatenate([np.ones(3), shifts])
    aim = x * np.log(np.where(x > 0, x, 1.0))
    found = sizes * np.linalg.lstsq(terms * sizes, aim, rcond=np.finfo(np.float64).eps)[0]
    return shifts, found[3:], found[:3]
