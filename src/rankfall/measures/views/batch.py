"""A profile of many token matrices at once, all facts computed beforehand; nothing in it waits for a value."""

from __future__ import annotations

from typing import final

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from rankfall.measures.profile import GRAM_ROUNDING, TRUSTED_SUM_SHARE, Profile
from rankfall.measures.rank import tolerance
from rankfall.measures.views.prepared import TRUSTED_SHARE


@final
class BatchProfile(Profile):
    """Token matrices that may differ in their number of tokens. Of each spectrum's entries, smallest first, the first
    `absent` stand for nothing, and the next `structural_zeros` are zero by construction; rounding there is cut off.
    So is it for the smallest where a matrix is `singular`, its rows known to depend on each other.

    Squared singular values decide everything here, which is not always enough: `smallest_in_doubt` and
    `others_in_doubt` say of which matrices.
    """

    def __init__(
        self,
        *,
        counts: Int[Tensor, b],
        width: int,
        eigenvalues: Float[Tensor, "b s"],
        absent: Int[Tensor, b],
        structural_zeros: Int[Tensor, b],
        cosine_sums: Float[Tensor, b],
        energies: Float[Tensor, "b n"],
        spread: Float[Tensor, b],
        size: Float[Tensor, b],
        singular: Bool[Tensor, b],
        epsilon: float,
    ) -> None:
        self._counts, self._width, self.absent = counts, width, absent
        places = torch.arange(eigenvalues.shape[-1], device=eigenvalues.device)
        self._present = places >= (absent + torch.maximum(structural_zeros, singular.to(torch.int64)))[:, None]
        self.structural_zeros = structural_zeros  # type: ignore[assignment]
        self.singular = singular
        self.size, self.epsilon = size, epsilon
        self.__dict__ |= {
            "eigenvalues": eigenvalues.clamp_min(0).where(self._present, 0.0),
            "absolute_cosine_sum": cosine_sums,
            "token_energies": energies,
            "spread": spread,
        }

    @property
    def count(self) -> Tensor:  # type: ignore[override]
        """Tokens of each."""
        return self._counts

    @property
    def width(self) -> int:
        """Coordinates, d."""
        return self._width

    @property
    def longer_side(self) -> Tensor:
        """max(n, d) of each."""
        return self._counts.clamp_min(self._width)

    def count_above(self, share: float | Tensor) -> Float[Tensor, b]:
        """How many singular values exceed this share of the largest."""
        return (self._beyond(share) > 0).sum(dim=-1).to(self.eigenvalues.dtype)

    @property
    def energy_but_first(self) -> Float[Tensor, b]:
        """s_2^2 + s_3^2 + ..."""
        return self.eigenvalues[:, :-1].sum(dim=-1)

    @property
    def smallest_singular_value(self) -> Float[Tensor, b]:
        """The least of the min(n, d) singular values."""
        return self._least.sqrt()

    @property
    def smallest_in_doubt(self) -> Bool[Tensor, b]:
        """Where the smallest singular value is so small that its square tells nothing."""
        known = self.singular | (self.structural_zeros > 0)
        return (self._least <= TRUSTED_SHARE * self.eigenvalues[:, -1]) & ~known

    @property
    def others_in_doubt(self) -> Bool[Tensor, b]:
        """Where squares cannot tell the rank, or what the first direction leaves."""
        largest = self.eigenvalues[:, -1]
        close = (self._beyond(tolerance(self)).abs() <= GRAM_ROUNDING * largest[:, None]) & self._present
        return close.any(dim=-1) | (self.energy_but_first <= TRUSTED_SUM_SHARE * largest)

    def _beyond(self, share: float | Tensor) -> Float[Tensor, "b s"]:
        square = torch.as_tensor(share, dtype=self.eigenvalues.dtype, device=self.eigenvalues.device).square()
        return self.eigenvalues - square.reshape(-1, 1) * self.eigenvalues[:, -1:]

    @property
    def _least(self) -> Float[Tensor, b]:
        return self.eigenvalues.gather(1, self.absent[:, None])[:, 0]
