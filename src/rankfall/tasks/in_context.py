"""In-context linear regression (Garg et al. 2022), the further experiment of paper A's later version (A-icl)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.tasks.base import Sample, Task
from rankfall.tasks.streams import Draws


@dataclass(frozen=True)
class InContext(Task):
    """The prompt x_1, y_1, ..., x_k, y_k with y_i = <w, x_i>; at each x_i the model must output y_i.

    x_i and sqrt(p) w standard normal in p = dim/2 dimensions, so that y_i has variance one and outputting zero costs
    one. x fills the first p coordinates of its token, y the coordinate after them, where answers are read off too:
    no learned read-in or read-out, hence the same encoder as for the other tasks.
    """

    name: ClassVar[str] = "in-context"
    summary: ClassVar[str] = "in-context linear regression on k pairs (x, <w, x>), causal"
    causal: ClassVar[bool] = True

    def check(self, points: int, dim: int) -> None:
        require_count("points", points, least=1)
        require(
            dim >= 2 and dim % 2 == 0,
            required="an even dim, half of it for x and the other half for y",
            got=dim,
            remedy="set dim to an even number",
        )

    def tokens(self, points: int) -> int:
        return 2 * points

    def asked(self, points: int, dim: int) -> Tensor:
        asked = torch.zeros(points, 2, dim)
        asked[:, 0, dim // 2] = 1.0
        return asked.reshape(2 * points, dim)

    def sample(self, draws: Draws, batch: int, points: int, dim: int) -> Sample:
        half = dim // 2
        x = draws.normal(0, batch, points, half)
        w = draws.normal(1, batch, half, 1) / half**0.5
        y = x @ w
        asks = torch.cat([x, torch.zeros_like(x)], dim=-1)
        tells = torch.cat([torch.zeros_like(x), y, torch.zeros_like(x[..., 1:])], dim=-1)
        inputs = torch.stack([asks, tells], dim=-2).flatten(-3, -2)
        answers = torch.stack([tells, torch.zeros_like(tells)], dim=-2).flatten(-3, -2)
        return Sample(inputs, answers)
