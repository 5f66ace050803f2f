"""In-context linear regression (Garg et al. 2022), the further experiment of paper A's later version (A-icl)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor
from torch.nn.functional import pad

from rankfall.errors import require, require_count
from rankfall.tasks.base import Draws, Sample, Task


@dataclass(frozen=True)
class InContext(Task):
    """The prompt x_1, y_1, ..., x_k, y_k with y_i = <w, x_i>; at each x_i the model must output y_i.

    x_i and sqrt(p) w standard normal in p = `dimensions` dimensions (dim/2 when None), so that y_i has variance one
    and outputting zero costs one. x fills the first p coordinates of its token, y the coordinate after them, where
    answers are read off too: no learned read-in or read-out, hence the same encoder as for the other tasks.
    """

    dimensions: int | None = None
    name: ClassVar[str] = "in-context"
    summary: ClassVar[str] = "in-context linear regression on k pairs (x, <w, x>), causal (in-context:4 for x in R^4)"
    causal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.dimensions is not None:
            require_count("dimensions", self.dimensions)

    @classmethod
    def examples(cls) -> Sequence[tuple[Self, int, int]]:
        return [(cls(), 2, 8), (cls(3), 7, 6)]

    def check(self, points: int, dim: int) -> None:
        require_count("points", points)
        require_count("dim", dim, least=2)
        require(
            self.regressors(dim) < dim,
            required=f"a dim above {self.regressors(dim)}, for x and a coordinate of y",
            got=dim,
            remedy="widen dim, or lower the number of dimensions",
        )

    def regressors(self, dim: int) -> int:
        """p, the dimension of x and w."""
        return self.dimensions or dim // 2

    def least_error(self, points: int, dim: int) -> float:
        """The least mean error of any predictor: after j pairs max(0, 1 - j/p), averaged over j = 0, ..., k-1.

        Given j < p pairs, w is known on their span and standard normal/sqrt(p) across it, so that the best guess is
        zero there and leaves (p - j)/p of the variance; p pairs leave nothing.
        """
        p = self.regressors(dim)
        return sum(max(0.0, 1.0 - j / p) for j in range(points)) / points

    def tokens(self, points: int) -> int:
        return 2 * points

    def scored(self, points: int, dim: int) -> Tensor:
        scored = torch.zeros(points, 2, dim)
        scored[:, 0, self.regressors(dim)] = 1.0
        return scored.reshape(2 * points, dim)

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        p = self.regressors(dim)
        x = draws.normal(0, batch, points, p)
        w = draws.normal(1, batch, p, 1) / p**0.5
        x_tokens = pad(x, (0, dim - p))
        y_tokens = pad(x @ w, (p, dim - p - 1))
        inputs = torch.stack([x_tokens, y_tokens], dim=-2).flatten(-3, -2)
        answers = torch.stack([y_tokens, torch.zeros_like(y_tokens)], dim=-2).flatten(-3, -2)
        return Sample(inputs, answers)
