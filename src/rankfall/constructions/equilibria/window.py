"""Family window: each token sees itself and the one before, W_V = diag(1 - delta (d - j)) + w * shift.

All ranks 1..d coexist for ONE value matrix and ONE mask, and all are strictly stable (spectral radius 1 - delta).
The price is conditioning: the smallest singular value of the tokens falls like w^-(k-1), and the basin with it.
"""

from __future__ import annotations

from typing import ClassVar, final

from rankfall.attention.masks import CausalWindow
from rankfall.constructions.equilibria.base import Construction, Family
from rankfall.constructions.equilibria.shift import shift_construction

# width: (w, delta) for which every rank is strictly stable, certified in decimal arithmetic by the tests.
# At width 10 it takes w = 30 and the smallest singular value is 6e-17: float64 cannot tell rank 10 from 9 there.
DESIGNS: dict[int, tuple[float, float]] = {
    1: (2.0, 0.2),
    2: (2.0, 0.2),
    3: (3.0, 0.2),
    4: (4.0, 0.2),
    5: (6.0, 0.1),
    6: (8.0, 0.1),
    7: (11.0, 0.02),
    8: (12.0, 0.02),
    9: (20.0, 0.02),
}
WIDEST = max(DESIGNS)


@final
class Window(Family):
    """Uniform attention on a window of one; every rank up to nine strictly stable."""

    name: ClassVar[str] = "window"
    meaning: ClassVar[str] = "uniform attention on the token before and itself, value matrix diagonal plus shift"
    mask: ClassVar[str] = "causal-window:1"
    stability: ClassVar[str] = f"strictly stable for every rank up to {WIDEST}; under one layer up to width {WIDEST}"

    def limit(self, count: int, width: int) -> int:
        return min(count, width, WIDEST)

    def strict(self, count: int, width: int, rank: int) -> bool:
        return rank <= WIDEST

    def shares(self, count: int, width: int) -> bool:
        return width <= WIDEST

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        # A shift no longer than the rank keeps the basin as wide as it can be; one layer for all needs it whole.
        inner = width if shared else rank
        allowed = CausalWindow(1).dense(count)
        return shift_construction(self.name, allowed, width, rank, (inner, *DESIGNS[inner]), sees_all=False)
