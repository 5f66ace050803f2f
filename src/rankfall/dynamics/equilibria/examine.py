"""Everything we say about an equilibrium: residual, rank, conditioning, stability."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.equilibria import Construction, NormalisedLayer
from rankfall.dynamics.equilibria.stability import Stability, stability
from rankfall.linalg import singular_values

EPSILON = float(torch.finfo(torch.float64).eps)
# A certified radius is a float64 that decimal arithmetic rounded up at the sixteenth digit.
CERTAIN = 1e-14


@final
@dataclass(frozen=True)
class Examined:
    """Measured facts of tokens under a layer. Rank counts singular values above `tolerance` times the largest:
    max(n, d) * eps, or ten times the residual where that is more.

    `smallest` is the last singular value that counts and `next` the first that does not, both relative to the
    largest: a wide gap between them means that the rank is beyond doubt.
    """

    residual: float
    rank: int
    tolerance: float
    smallest: float
    next: float
    stability: Stability
    certified_radius: float | None = None
    digits: int | None = None

    @property
    def spectral_radius(self) -> float:
        """The certified radius where there is one, else the one that float64 gives."""
        return self.stability.spectral_radius if self.certified_radius is None else self.certified_radius

    @property
    def verdict(self) -> str:
        """stable, marginal or unstable."""
        if self.certified_radius is None:
            return self.stability.verdict
        # The certified radius is rounded up in its last digits, so a marginal one shows just above one.
        if abs(self.certified_radius - 1) < CERTAIN:
            return "marginal"
        return "stable" if self.certified_radius < 1 else "unstable"

    def record(self) -> dict[str, Any]:
        """As `--json` prints it."""
        return {
            "residual": self.residual,
            "rank": self.rank,
            "rank_tolerance": self.tolerance,
            "smallest_singular_value": self.smallest,
            "next_singular_value": self.next,
            "spectral_radius": self.spectral_radius,
            "spectral_radius_float64": self.stability.spectral_radius,
            "uncertainty": CERTAIN if self.certified_radius is not None else self.stability.uncertainty,
            "digits": self.digits,
            "stable": self.verdict == "stable",
            "stability": self.verdict,
            "neutral_directions": self.stability.neutral,
            "transient_growth": self.stability.growth,
            "dimension": self.stability.dimension,
        }


def numerical_rank(tokens: Float[Tensor, "n d"], tolerance: float) -> int:
    """How many singular values exceed `tolerance` times the largest."""
    values = singular_values(tokens)
    return int((values > tolerance * values[0]).sum())


def examine(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> Examined:
    """Measure tokens under a layer that leaves them (nearly) alone."""
    values = singular_values(tokens)
    values = values / values[0]
    residual = layer.residual(tokens)
    tolerance = max(max(tokens.shape) * EPSILON, 10 * residual)
    rank = numerical_rank(tokens, tolerance)
    following = float(values[rank]) if rank < len(values) else 0.0
    return Examined(residual, rank, tolerance, float(values[rank - 1]), following, stability(layer, tokens))


def examine_construction(construction: Construction) -> Examined:
    """The same, with the radius that the family certified in more digits than float64 has."""
    seen = examine(construction.layer, construction.tokens)
    return replace(seen, certified_radius=construction.radius, digits=construction.digits)
