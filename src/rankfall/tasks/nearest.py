"""Nearest neighbour with separate queries (A-target)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankfall.errors import require_count
from rankfall.tasks.base import Sample, Task
from rankfall.tasks.sphere import on_sphere
from rankfall.tasks.streams import Draws
from rankfall.theory.targets import nearest_neighbour


@dataclass(frozen=True)
class Nearest(Task):
    """Tokens: N points, then N queries, all uniform on the sphere. A query outputs the point nearest to it.

    Queries are not attended to: a query is its own nearest point.
    """

    name: ClassVar[str] = "nearest"
    summary: ClassVar[str] = "separate queries output the point nearest to them (cross-attention)"

    def check(self, points: int, dim: int) -> None:
        require_count("points", points, least=2)
        require_count("dim", dim, least=2)

    def tokens(self, points: int) -> int:
        return 2 * points

    def context(self, points: int) -> int:
        return points

    def asked(self, points: int, dim: int) -> Tensor:
        return torch.cat([torch.zeros(points, dim), torch.ones(points, dim)])

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        frame = self.draw_points(draws, batch, points, dim)
        queries = on_sphere(draws.normal(1, batch, points, dim))
        return sequence(frame, queries, nearest_neighbour(frame, queries))

    def draw_points(self, draws: Draws, batch: int, points: int, dim: int) -> Tensor:
        return on_sphere(draws.normal(0, batch, points, dim))


def sequence(points: Tensor, queries: Tensor, answers: Tensor) -> Sample:
    """Points, then queries, as one sequence; only the queries have answers."""
    return Sample(torch.cat([points, queries], dim=-2), torch.cat([torch.zeros_like(points), answers], dim=-2))
