"""Family past: uniform causal attention, W_V = diag(1 - delta (d - j)) + w * shift.

Every rank exists for one value matrix. Ranks 1, 2 and 3 are strictly stable (spectral radius 1 - delta), ranks from
4 on are not. With delta = 0 the first three are marginal: their Jacobian has Jordan blocks of eigenvalue one.
"""

from __future__ import annotations

from typing import ClassVar, final

from rankfall.attention.masks import Causal
from rankfall.constructions.equilibria.base import Construction, Family
from rankfall.constructions.equilibria.shift import shift_construction

WEIGHT = 2.0
DELTA = 0.01
STABLE_RANK = 3
WIDEST = 16


@final
class Past(Family):
    """Uniform causal attention; strictly stable up to rank three."""

    name: ClassVar[str] = "past"
    meaning: ClassVar[str] = "uniform causal attention, value matrix diagonal plus shift"
    mask: ClassVar[str] = "causal"
    stability: ClassVar[str] = "strictly stable up to rank 3, unstable from rank 4 on"

    def limit(self, count: int, width: int) -> int:
        return min(count, width) if width <= WIDEST else 0

    def strict(self, count: int, width: int, rank: int) -> bool:
        return rank <= STABLE_RANK and width <= WIDEST

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        allowed = Causal().dense(count)
        return shift_construction(self.name, allowed, width, rank, (width, WEIGHT, DELTA), sees_all=True)
