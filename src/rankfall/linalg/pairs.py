"""Two spectra for the price of one: a symmetric matrix, and the same matrix with one direction taken out or added.

A Householder reflection turns the direction u into the first coordinate; the reduction to tridiagonal form T leaves
that coordinate alone. So T belongs to A, T without its first row and column to A restricted to the complement of u,
and T with its first entry changed by c to A + c u u^T. The reduction costs n^3, what is read off each
spectrum n, or n^2 when all eigenvalues are wanted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import numpy as np

from rankfall.linalg.lapack import Matrix, Vector, tridiagonalise
from rankfall.linalg.scratch import Scratch
from rankfall.linalg.tridiagonal import Spectrum


@final
@dataclass(frozen=True)
class Reduced:
    """A symmetric matrix in tridiagonal form whose first coordinate is a chosen direction."""

    diagonal: Vector
    off: Vector

    def spectrum(self, added: float = 0.0) -> Spectrum:
        """Of A + added * u u^T."""
        diagonal = self.diagonal
        if added:
            diagonal = diagonal.copy()
            diagonal[0] += added
        return Spectrum(diagonal, self.off)

    def spectrum_without(self) -> Spectrum:
        """Of A restricted to the complement of u: n - 1 eigenvalues."""
        return Spectrum(self.diagonal[1:], self.off[1:])


def mirror(direction: Vector) -> Vector:
    """The unit vector v for which I - 2 v v^T turns the direction into the first coordinate (up to sign)."""
    v = direction / np.linalg.norm(direction)
    v[0] += np.copysign(1.0, v[0])
    return v / np.linalg.norm(v)


def reflect(symmetric: Matrix, v: Vector, scratch: Scratch | None = None) -> Matrix:
    """The lower triangle of (I - 2 v v^T) A (I - 2 v v^T), in column order, in scratch memory."""
    from scipy.linalg.blas import dsyr2

    image = symmetric @ v
    p = 2.0 * (image - (v @ image) * v)
    return dsyr2(-1.0, v, p, a=in_column_order(symmetric, scratch or Scratch()), lower=1, overwrite_a=1)


def in_column_order(symmetric: Matrix, scratch: Scratch) -> Matrix:
    """A copy in column order. A symmetric matrix is its own transpose, so no element need move."""
    copy = scratch.matrix("in column order", *symmetric.shape)
    copy[:] = symmetric
    return copy.T


def reduce_along(symmetric: Matrix, direction: Vector, scratch: Scratch | None = None) -> Reduced:
    """A in tridiagonal form with the direction as first coordinate; any direction will do if it is zero."""
    scratch = scratch or Scratch()
    if not direction.any():
        return Reduced(*tridiagonalise(in_column_order(symmetric, scratch)))
    return Reduced(*tridiagonalise(reflect(symmetric, mirror(direction), scratch)))
