"""Nearest and farthest neighbours on the sphere (A-target), and among orthonormal points."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import torch
from torch import Tensor

from rankfall.errors import require_count
from rankfall.tasks.base import Draws, Sample, SeparateQueries, Task, on_sphere, orthonormal_frame
from rankfall.theory.targets import farthest_neighbour, nearest_neighbour


@dataclass(frozen=True)
class Nearest(SeparateQueries):
    """Points and queries uniform on the sphere; a query outputs the point nearest to it."""

    name: ClassVar[str] = "nearest"
    summary: ClassVar[str] = "separate queries output the point nearest to them (cross-attention)"

    @classmethod
    def examples(cls) -> Sequence[tuple[Self, int, int]]:
        return [(cls(), 2, 8), (cls(), 3, 4)]

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        frame = self.draw_points(draws, batch, points, dim)
        queries = on_sphere(draws.normal(1, batch, points, dim))
        return self.sequence(frame, queries, nearest_neighbour(frame, queries))

    def draw_points(self, draws: Draws, batch: int, points: int, dim: int) -> Tensor:
        return on_sphere(draws.normal(0, batch, points, dim))


@dataclass(frozen=True)
class Farthest(Task):
    """Points uniform on the unit sphere; each must output the point farthest from it."""

    name: ClassVar[str] = "farthest"
    summary: ClassVar[str] = "each point outputs the point farthest from it (self-attention)"

    @classmethod
    def examples(cls) -> Sequence[tuple[Self, int, int]]:
        return [(cls(), 2, 8), (cls(), 5, 3)]

    def scored(self, points: int, dim: int) -> Tensor:
        return torch.ones(points, dim)

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        inputs = on_sphere(draws.normal(0, batch, points, dim))
        return Sample(inputs, farthest_neighbour(inputs))


@dataclass(frozen=True)
class Orthonormal(Nearest):
    """As `Nearest`, the points being a uniformly rotated orthonormal frame."""

    name: ClassVar[str] = "orthonormal"
    summary: ClassVar[str] = "as nearest, the points orthonormal (N=2: the theory's form)"

    def check(self, points: int, dim: int) -> None:
        super().check(points, dim)
        require_count("points", points, least=2, most=dim, remedy="orthonormal points number no more than dimensions")

    def draw_points(self, draws: Draws, batch: int, points: int, dim: int) -> Tensor:
        return orthonormal_frame(draws.normal(0, batch, points, dim))
