"""Prepared token matrices as one batch, so that a measure is read off all of them at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import final

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.measures.profile import Profile
from rankfall.measures.views.prepared import Prepared


@final
class PreparedProfile(Profile):
    """A batch of token matrices of one shape. What the facts mean, the base class says; here they were prepared."""

    def __init__(self, parts: Sequence[Prepared], epsilon: float) -> None:
        self.parts, self.epsilon = parts, epsilon
        self.structural_zeros = min(part.structural_zeros for part in parts)

    @cached_property
    def tokens(self) -> Float[Tensor, "b n d"]:  # type: ignore[override]
        """Made when asked for: almost everything is read off what is given."""
        return torch.from_numpy(np.stack([part.make() for part in self.parts]))

    @property
    def count(self) -> int:
        return self.parts[0].shape[0]

    @property
    def width(self) -> int:
        return self.parts[0].shape[1]

    @cached_property
    def size(self) -> Float[Tensor, b]:  # type: ignore[override]
        return self._gathered(lambda part: part.size)

    @cached_property
    def token_energies(self) -> Float[Tensor, "b n"]:
        return torch.from_numpy(np.stack([part.energies for part in self.parts]))

    @cached_property
    def spread(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.spread)

    @cached_property
    def eigenvalues(self) -> Float[Tensor, "b s"]:
        return torch.from_numpy(np.stack([part.eigenvalues for part in self.parts]))

    @cached_property
    def eigenvalue_sum(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.spectrum.total)

    @cached_property
    def largest_eigenvalue(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.spectrum.largest)

    @property
    def entropy(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.spectrum.entropy())

    @property
    def concentration(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.spectrum.concentration)

    @cached_property
    def singular_values(self) -> Float[Tensor, "b s"]:
        return torch.from_numpy(np.stack([part.singular_values for part in self.parts]))

    @property
    def smallest_singular_value(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.smallest_singular_value())

    def count_above(self, share: float | Tensor) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.count_above(float(share)))

    @property
    def energy_but_first(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: part.energy_but_first())

    @cached_property
    def absolute_cosine_sum(self) -> Float[Tensor, b]:
        return self._gathered(lambda part: max(part.cosine_sum, 0.0))

    def _gathered(self, fact: Callable[[Prepared], float]) -> Float[Tensor, b]:
        return torch.tensor([fact(part) for part in self.parts], dtype=torch.float64)


def together(profiles: Iterable[PreparedProfile]) -> PreparedProfile:
    """Several batches of one shape as one."""
    several = tuple(profiles)
    return PreparedProfile([part for profile in several for part in profile.parts], several[0].epsilon)
