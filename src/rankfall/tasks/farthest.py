"""Farthest neighbour, as the experiments of paper A train it (A-fig1, A-fig3, A-fig4)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankfall.errors import require_count
from rankfall.tasks.base import Sample, Task
from rankfall.tasks.sphere import on_sphere
from rankfall.tasks.streams import Draws
from rankfall.theory.targets import farthest_neighbour


@dataclass(frozen=True)
class Farthest(Task):
    """Points uniform on the unit sphere; each must output the point farthest from it."""

    name: ClassVar[str] = "farthest"
    summary: ClassVar[str] = "each point outputs the point farthest from it (self-attention)"

    def check(self, points: int, dim: int) -> None:
        require_count("points", points, least=2)
        require_count("dim", dim, least=2)

    def asked(self, points: int, dim: int) -> Tensor:
        return torch.ones(points, dim)

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        inputs = on_sphere(draws.normal(0, batch, points, dim))
        return Sample(inputs, farthest_neighbour(inputs))
