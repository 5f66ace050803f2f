"""What a construction is: explicit weights that realise a statement of paper A, and the error that they must have."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from rankfall.constructions.network import Network
from rankfall.theory.targets import nearest_neighbour

Points = Literal["orthonormal", "independent"]
Exactness = Literal["exact", "asymptotic", "limit"]


@dataclass(frozen=True)
class Prediction:
    """The mean squared error E||output - target||^2 that theory gives, summed over the d coordinates.

    `exact`: equal up to quadrature. `asymptotic`: leading term as `when` says. `limit`: the value approached.
    """

    mse: float
    exactness: Exactness
    when: str


class Construction(ABC):
    """Weights by formula. Subclasses are frozen dataclasses of their parameters and final."""

    name: ClassVar[str]
    statement: ClassVar[str]
    """The id of the statement that it realises, such as `A-fact`."""
    says: ClassVar[str]
    """That statement in one sentence, as this construction makes it concrete."""

    dim: int
    points: int

    @abstractmethod
    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        """The network. Constructions with random heads draw them from the generator; the others ignore it."""

    @abstractmethod
    def predicted_error(self) -> Prediction:
        """What theory says of the error on orthonormal points, averaged over the random heads where there are any."""

    def target(self, points: Tensor, queries: Tensor) -> Tensor:
        """What the network is to output for (..., n, d) points and (..., m, d) queries."""
        return nearest_neighbour(points, queries)
