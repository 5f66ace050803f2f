"""One token matrix whose spectrum and sums were prepared together with those of other views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import final

import numpy as np
import torch

from rankfall.linalg.lapack import Matrix, Vector
from rankfall.linalg.smallest import smallest_singular_value
from rankfall.linalg.spectra import singular_values
from rankfall.linalg.tridiagonal import Spectrum
from rankfall.measures.profile import GRAM_ROUNDING, TRUSTED_SUM_SHARE

# An eigenvalue from a float64 Gram matrix is off by a few 1e-16 of the largest; above this share of the largest its
# square root is right to 1e-6 or better, and below it something that does not square decides.
TRUSTED_SHARE = 1e-9


@final
@dataclass(frozen=True, eq=False)
class Prepared:
    """Facts of (n, d) tokens of this `shape`, divided by `size`; `make` gives them, should they be needed.

    `structural_zeros` singular values are zero by construction (one, for centred tokens that are no more than their
    coordinates) and not in the spectrum. Nothing is kept that only one measure asks for: on Python 3.11 threads wait
    for each other at every cached property.
    """

    make: Callable[[], Matrix]
    shape: tuple[int, int]
    spectrum: Spectrum
    cosine_sum: float
    energies: Vector
    spread: float
    size: float
    structural_zeros: int = 0

    @property
    def eigenvalues(self) -> Vector:
        """Squared singular values, smallest first."""
        return np.concatenate([np.zeros(self.structural_zeros), self.spectrum.eigenvalues])

    @cached_property
    def singular_values(self) -> Vector:
        """Largest first: from the spectrum where that can be trusted, else by the SVD."""
        if self.spectrum.size == 0 or self.spectrum.smallest_above(TRUSTED_SHARE) is not None:
            return np.sqrt(self.eigenvalues[::-1])
        exact = singular_values(torch.from_numpy(self.make())).numpy()
        return np.concatenate([exact[: self.spectrum.size], np.zeros(self.structural_zeros)])

    def smallest_singular_value(self) -> float:
        """The least of the min(n, d); where the spectrum cannot be trusted, without a whole SVD."""
        if self.structural_zeros:
            return 0.0
        square = self.spectrum.smallest_above(TRUSTED_SHARE)
        if square is not None:
            return float(np.sqrt(square))
        found = None
        if "singular_values" not in self.__dict__:
            found = smallest_singular_value(self.make(), float(np.sqrt(self.spectrum.largest)))
        return float(self.singular_values[-1]) if found is None else found

    def count_above(self, share: float) -> int:
        """How many singular values exceed this share of the largest; the SVD is asked only where it is close."""
        found = self.spectrum.count_above(share**2, margin=GRAM_ROUNDING)
        if found is not None:
            return found
        values = self.singular_values
        return int((values > share * values[0]).sum())

    def energy_but_first(self) -> float:
        """s_2^2 + s_3^2 + ...; needs the SVD when that is next to nothing."""
        rest = self.spectrum.total - self.spectrum.largest
        if rest > TRUSTED_SUM_SHARE * self.spectrum.largest:
            return rest
        return float(np.square(self.singular_values[1:]).sum())
