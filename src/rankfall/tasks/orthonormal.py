"""Nearest neighbour among orthonormal points: with N=2 the form that the theory of paper A is about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rankfall.errors import require
from rankfall.tasks.nearest import Nearest
from rankfall.tasks.sphere import orthonormal_frame
from rankfall.tasks.streams import Draws


@dataclass(frozen=True)
class Orthonormal(Nearest):
    """As `Nearest`, the points being a uniformly rotated orthonormal frame."""

    name: ClassVar[str] = "orthonormal"
    summary: ClassVar[str] = "as nearest, the points orthonormal (N=2: the theory's form)"

    def check(self, points: int, dim: int) -> None:
        super().check(points, dim)
        require(
            points <= dim,
            required=f"at most as many orthonormal points as dimensions, {dim}",
            got=f"{points} points",
            remedy="use points=2, the theory's form, or a larger dim",
        )

    def draw_points(self, draws: Draws, batch: int, points: int, dim: int) -> Tensor:
        return orthonormal_frame(draws.normal(0, batch, points, dim))
