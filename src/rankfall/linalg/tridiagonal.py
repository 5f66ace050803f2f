"""What a spectrum is asked for, from the tridiagonal matrix, without computing all of it.

All eigenvalues take O(n^2); their sums, the largest, the smallest and how many exceed a bound take O(n) each.
"""

from __future__ import annotations

from functools import cached_property
from typing import final

import numpy as np

from rankfall.linalg.entropy import entropy
from rankfall.linalg.lapack import Vector, tridiagonal_counts, tridiagonal_eigenvalue, tridiagonal_eigenvalues


@final
class Spectrum:
    """The eigenvalues of a symmetric tridiagonal matrix, none of which is negative but by rounding.

    The matrix is held divided by its trace, `total`; a matrix whose trace is not positive has eigenvalues zero.
    """

    def __init__(self, diagonal: Vector, off: Vector) -> None:
        self.size = diagonal.size
        self.total = max(float(diagonal.sum()), 0.0)
        scale = 1.0 / self.total if self.total > 0 else 0.0
        self._diagonal, self._off = diagonal * scale, off * scale
        # sum p^2 of the shares p = eigenvalue / total; the largest share lies between that and its root.
        self.concentration = float(self._diagonal @ self._diagonal + 2.0 * (self._off @ self._off))
        self._largest_share = self._largest() if self.total > 0 else 0.0
        self.largest = self._largest_share * self.total

    def _largest(self) -> float:
        high = float(np.sqrt(self.concentration))
        return tridiagonal_eigenvalue(self._diagonal, self._off, self.size - 1, self.concentration, high)

    @cached_property
    def eigenvalues(self) -> Vector:
        """All of them, smallest first; rounding below zero is cut off."""
        return np.maximum(tridiagonal_eigenvalues(self._diagonal, self._off), 0.0) * self.total

    def entropy(self) -> float:
        """-sum p log p of the shares."""
        return entropy(self._diagonal, self._off) if self.total > 0 else 0.0

    def count_above(self, fraction: float, margin: float) -> int | None:
        """How many eigenvalues exceed this fraction of the largest; None if some are within `margin` of the largest
        of that bound."""
        if self.total == 0:
            return 0
        low, high = ((fraction + side * margin) * self._largest_share for side in (-1, 1))
        below, up_to = tridiagonal_counts(self._diagonal, self._off, low, high)
        return self.size - below if below == up_to else None

    def smallest_above(self, fraction: float) -> float | None:
        """The smallest eigenvalue if it exceeds this fraction of the largest, else None."""
        if self.total == 0:
            return None
        low = fraction * self._largest_share
        if max(tridiagonal_counts(self._diagonal, self._off, low, low)) > 0:
            return None
        return self.total * tridiagonal_eigenvalue(self._diagonal, self._off, 0, low, float(self._diagonal.min()))
