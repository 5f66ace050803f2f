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
        return answer_queries(self.points(draws, batch, points, dim), on_sphere(draws.normal(1, batch, points, dim)))

    def points(self, draws: Draws, batch: int, points: int, dim: int) -> Tensor:
        return on_sphere(draws.normal(0, batch, points, dim))


def answer_queries(points: Tensor, queries: Tensor) -> Sample:
    """Points, then queries, as one sequence; the target of a query is the point with the largest inner product."""
    nearest = (queries @ points.mT).argmax(dim=-1, keepdim=True)
    answers = points.gather(-2, nearest.expand_as(queries))
    return Sample(torch.cat([points, queries], dim=-2), torch.cat([torch.zeros_like(points), answers], dim=-2))
