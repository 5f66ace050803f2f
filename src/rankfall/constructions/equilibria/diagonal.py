"""Family diagonal: uniform causal attention, W_V = diag(1, r, r^2, ...): every rank exists, and none is stable.

Token i <= k resonates with eigenvalue lam_i: coordinate j < i is lam_j S_j / (lam_i - lam_j), S the sum of the
earlier tokens, and coordinate i fills up to length one. Later tokens settle with a growth factor above lam_k.
W_V is normal, so rank two and more is never stable: here the radius is lam_d / lam_1 for every rank, as token 1
sits at the weakest eigenvector. (All tokens at e_d is stable, with radius 1/r.)
"""

from __future__ import annotations

from typing import ClassVar, final

import torch

from rankfall.attention.masks import Causal
from rankfall.constructions.equilibria.base import Construction, Family
from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.constructions.equilibria.settle import settled

RATIO = 3.0

# Beyond this width the eigenvalues span more than float64 resolves: 3^40 is 1e19.
WIDEST = 32


@final
class Diagonal(Family):
    """Normal value matrix: equilibria of every rank coexist, and all are unstable."""

    name: ClassVar[str] = "diagonal"
    meaning: ClassVar[str] = "uniform causal attention, value matrix diag(1, 3, 9, ...)"
    mask: ClassVar[str] = "causal"
    stability: ClassVar[str] = "unstable for every width above 1: spectral radius 3^(d-1)"

    def limit(self, count: int, width: int) -> int:
        return min(count, width, WIDEST) if width <= WIDEST else 0

    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        eigenvalues = RATIO ** torch.arange(width, dtype=torch.float64)
        tokens = torch.zeros(count, width, dtype=torch.float64)
        tokens[0, 0] = 1.0
        for i in range(1, count):
            total = tokens[:i].sum(dim=0)
            if i < rank:
                own = eigenvalues[i]
                tokens[i, :i] = eigenvalues[:i] * total[:i] / (own - eigenvalues[:i])
                tokens[i, i] = (1 - tokens[i, :i].square().sum()).sqrt()
            else:
                inner = torch.diag(eigenvalues[:rank])
                tokens[i, :rank] = settled(total[:rank], inner, float(eigenvalues[rank - 1]))
        layer = NormalisedLayer(torch.diag(eigenvalues), Causal().dense(count))
        return Construction(self.name, rank, layer, tokens, {"ratio": RATIO})
