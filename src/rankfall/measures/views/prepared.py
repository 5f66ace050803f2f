"""A profile whose spectrum and sums were computed together with those of other views."""

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
from rankfall.measures.profile import Profile

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
        eigenvalues: Vector,
        cosine_sum: float,
        *,
        energies: Vector,
        spread: float,
        size: float,
        epsilon: float,
        structural_zeros: int = 0,
    ) -> None:
        self._make, self._shape = make, shape
        self.size = torch.tensor([size], dtype=torch.float64)
        self.epsilon = epsilon
        self.structural_zeros = structural_zeros
        self.__dict__["eigenvalues"] = torch.from_numpy(eigenvalues)[None]
        self.__dict__["absolute_cosine_sum"] = torch.tensor([max(cosine_sum, 0.0)], dtype=torch.float64)
        self.__dict__["token_energies"] = torch.from_numpy(energies)[None]
        self.__dict__["spread"] = torch.tensor([spread], dtype=torch.float64)

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
    def singular_values(self) -> Float[Tensor, "1 s"]:
        """Singular values, largest first: from the given spectrum where that can be trusted, else by the SVD."""
        squares = self.eigenvalues[0, self.structural_zeros :]
        zeros = squares.new_zeros(self.structural_zeros)
        if self._smallest_is_trusted:
            return torch.cat([squares.flip(-1).sqrt(), zeros])[None]
        exact = singular_values(self.tokens[0])
        return torch.cat([exact[: len(squares)], zeros])[None]

    @cached_property
    def smallest_singular_value(self) -> Float[Tensor, b]:
        """As the base class says; where the spectrum cannot be trusted, without a whole SVD."""
        if self.structural_zeros:
            return self.eigenvalues.new_zeros(1)
        if self._smallest_is_trusted or "singular_values" in self.__dict__:
            return self.singular_values[..., -1]
        largest = float(self.eigenvalues[0, -1]) ** 0.5
        found = smallest_singular_value(self.tokens[0].numpy(), largest)
        return self.singular_values[..., -1] if found is None else self.eigenvalues.new_full((1,), found)

    @cached_property
    def _smallest_is_trusted(self) -> bool:
        squares = self.eigenvalues[0, self.structural_zeros :]
        return len(squares) == 0 or bool(squares[0] > TRUSTED_SHARE * squares[-1])
