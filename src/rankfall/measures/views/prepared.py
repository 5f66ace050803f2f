"""A profile whose spectrum and sums were prepared together with those of other views."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.linalg.lapack import Matrix, Vector
from rankfall.linalg.smallest import smallest_singular_value
from rankfall.linalg.spectra import singular_values
from rankfall.linalg.tridiagonal import Spectrum
from rankfall.measures.profile import GRAM_ROUNDING, Profile

# An eigenvalue from a float64 Gram matrix is off by a few 1e-16 of the largest; above this share of the largest its
# square root is right to 1e-6 or better, and below it something that does not square decides.
TRUSTED_SHARE = 1e-9


@final
class PreparedProfile(Profile):
    """One token matrix (n, d) of this `shape` as a batch of one. `make` gives the tokens, divided by `size`, should
    they be needed; `structural_zeros` singular values are zero by construction (one, for centred tokens that are no
    more than their coordinates)."""

    def __init__(
        self,
        make: Callable[[], Matrix],
        shape: tuple[int, int],
        spectrum: Spectrum,
        cosine_sum: float,
        *,
        energies: Vector,
        spread: float,
        size: float,
        epsilon: float,
        structural_zeros: int = 0,
    ) -> None:
        self._make, self._shape, self._spectrum = make, shape, spectrum
        self.size = _one(size)
        self.epsilon = epsilon
        self.structural_zeros = structural_zeros
        self.__dict__["absolute_cosine_sum"] = _one(max(cosine_sum, 0.0))
        self.__dict__["token_energies"] = torch.from_numpy(energies)[None]
        self.__dict__["spread"] = _one(spread)

    @cached_property
    def tokens(self) -> Float[Tensor, "1 n d"]:  # type: ignore[override]
        """Made when asked for: almost everything is read off what is given."""
        return torch.from_numpy(self._make())[None]

    @property
    def count(self) -> int:
        """Tokens, n."""
        return self._shape[0]

    @property
    def width(self) -> int:
        """Coordinates, d."""
        return self._shape[1]

    @cached_property
    def eigenvalues(self) -> Float[Tensor, "1 s"]:
        """All of them, should they be needed: the facts below are read off without."""
        found = torch.from_numpy(self._spectrum.eigenvalues)
        return torch.cat([found.new_zeros(self.structural_zeros), found])[None]

    @cached_property
    def eigenvalue_sum(self) -> Float[Tensor, b]:
        """As the base class says, and so are those that follow."""
        return _one(self._spectrum.total)

    @cached_property
    def largest_eigenvalue(self) -> Float[Tensor, b]:
        return _one(self._spectrum.largest)

    @cached_property
    def entropy(self) -> Float[Tensor, b]:
        return _one(self._spectrum.entropy)

    @cached_property
    def concentration(self) -> Float[Tensor, b]:
        return _one(self._spectrum.concentration)

    def count_above(self, share: float) -> Float[Tensor, b]:
        found = self._spectrum.count_above(share**2, margin=GRAM_ROUNDING)
        return super().count_above(share) if found is None else _one(float(found))

    @cached_property
    def singular_values(self) -> Float[Tensor, "1 s"]:
        """Singular values, largest first: from the given spectrum where that can be trusted, else by the SVD."""
        squares = self.eigenvalues[0, self.structural_zeros :]
        zeros = squares.new_zeros(self.structural_zeros)
        if self._spectrum.size == 0 or self._smallest_trusted is not None:
            return torch.cat([squares.flip(-1).sqrt(), zeros])[None]
        exact = singular_values(self.tokens[0])
        return torch.cat([exact[: len(squares)], zeros])[None]

    @cached_property
    def smallest_singular_value(self) -> Float[Tensor, b]:
        """As the base class says; where the spectrum cannot be trusted, without a whole SVD."""
        if self.structural_zeros:
            return _one(0.0)
        if self._smallest_trusted is not None:
            return _one(self._smallest_trusted**0.5)
        if "singular_values" in self.__dict__:
            return self.singular_values[..., -1]
        found = smallest_singular_value(self.tokens[0].numpy(), self._spectrum.largest**0.5)
        return self.singular_values[..., -1] if found is None else _one(float(found))

    @cached_property
    def _smallest_trusted(self) -> float | None:
        return self._spectrum.smallest_above(TRUSTED_SHARE)


def _one(value: float) -> Float[Tensor, b]:
    return torch.tensor([value], dtype=torch.float64)
