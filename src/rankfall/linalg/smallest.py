"""The smallest singular value alone, where the Gram matrix has lost it and a whole SVD would be a waste.

A triangular factor R of X has X's singular values, without squaring anything. The largest eigenvalue of
(R^T R)^-1 is 1 / s_min^2; Lanczos finds it with two triangular solves a step.
"""

from __future__ import annotations

import numpy as np

from rankfall.linalg.lapack import Matrix, Vector, solve_lower

# The bound on the relative error of s_min^2 at which Lanczos stops; the true error is nearer its square.
SETTLED = 1e-9
MOST_STEPS = 240
STEPS_BETWEEN_CHECKS = 8


def smallest_singular_value(matrix: Matrix, largest: float) -> float | None:
    """The least of the min(n, d) singular values of (n, d); None when it does not settle.

    `largest` is the largest singular value: below its rounding the smallest is zero for all that can be said, and
    zero is the answer.
    """
    n, d = matrix.shape
    lower: Matrix = np.transpose(np.linalg.qr(matrix.T if n <= d else matrix, mode="r"))
    zero = float(np.finfo(np.float64).eps * largest)
    # No entry on the diagonal of a triangular matrix is smaller than its smallest singular value.
    if np.abs(np.diagonal(lower)).min() <= zero:
        return 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        return _by_lanczos(lower, zero)


def _by_lanczos(lower: Matrix, zero: float) -> float | None:
    from scipy.linalg import eigh_tridiagonal

    size = len(lower)
    most = min(size, MOST_STEPS)
    basis = np.empty((most, size))
    diagonal, off = np.empty(most), np.empty(most)
    vector = np.random.default_rng(0).standard_normal(size)
    length = float(np.linalg.norm(vector))
    for step in range(most):
        basis[step] = vector / length
        vector = _inverse_gram(lower, basis[step])
        if not np.isfinite(vector).all():
            return 0.0
        known = basis[: step + 1]
        diagonal[step] = known[-1] @ vector
        # A Rayleigh quotient: 1 / s_min^2 is no less.
        if diagonal[step] * zero**2 >= 1.0:
            return 0.0
        for _ in range(2):  # twice is enough to stay orthogonal
            vector = vector - (known @ vector) @ known
        length = off[step] = float(np.linalg.norm(vector))
        last = step + 1 == most
        if not last and length > 0 and (step + 1) % STEPS_BETWEEN_CHECKS:
            continue
        values, vectors = eigh_tridiagonal(
            diagonal[: step + 1], off[:step], select="i", select_range=(step, step), check_finite=False
        )
        found = 1.0 / float(np.sqrt(values[0]))
        error = length * abs(float(vectors[-1, 0]))
        if found <= zero:
            return 0.0
        if error <= SETTLED * values[0] or step + 1 == size:
            return found
    return None


def _inverse_gram(lower: Matrix, vector: Vector) -> Vector:
    return solve_lower(lower, solve_lower(lower, vector), transposed=True)
