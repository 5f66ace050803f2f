"""The plane, A-thm2 in small: rank-1 heads at equal angles whose queries and keys agree."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, final

import torch

from rankfall.constructions.base import Construction, Prediction
from rankfall.constructions.network import Network
from rankfall.constructions.plane import rank_one_layer, require_plane, unit_vectors
from rankfall.errors import require_count


@final
@dataclass(frozen=True)
class EqualAngles(Construction):
    """H rank-1 hardmax heads q_h = k_h at angles pi h/H, all with the best common weight: bad, and exactly so.

    Of the H lines the number K that separate w from y is Hx rounded up or down, x = angle(w, y)/pi, with mean exactly
    Hx; so sum_h s_h = H - 2K has E[sgn * sum] = H/2 and E[sum^2] = (H^2 + 2)/3. With weight a for each,
    MSE = (1 - aH)^2/2 + (1 - aH + a^2 (H^2+2)/3)/2, least at a = 9H/(8H^2 + 4), where it is 1 - 27 H^2/(32 H^2 + 16):
    0.4375 for one head and never below 5/32. More heads of one alignment do not help.
    """

    name: ClassVar[str] = "equal-angles"
    statement: ClassVar[str] = "A-thm2"
    says: ClassVar[str] = "in the plane, heads with q = k stay above 5/32 however many there are"

    heads: int
    dim: int = 2
    points: int = 2

    def __post_init__(self) -> None:
        require_count("heads", self.heads)
        require_plane(self)

    def build(self, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64) -> Network:
        h = self.heads
        direction = unit_vectors(math.pi * torch.arange(h, dtype=dtype) / h)
        weight = torch.full((h,), 9 * h / (8 * h**2 + 4), dtype=dtype)
        return rank_one_layer(direction, direction, weight)

    def predicted_error(self) -> Prediction:
        h = self.heads
        return Prediction(1 - 27 * h**2 / (32 * h**2 + 16), "exact", "two orthonormal points in the plane")
