"""What is measured of an equilibrium: residual, rank and stability; and equilibria of every rank under one layer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.catalogue import FAMILIES
from rankfall.equilibria.families import (
    Equilibrium,
    EquilibriumFamily,
    equilibrium_under,
    families,
    inner_width,
    require_signs,
)
from rankfall.equilibria.layer import NormalisedLayer, by_coordinates
from rankfall.equilibria.signs import SIGNS
from rankfall.equilibria.stability import Stability, stability
from rankfall.errors import RequestError, require
from rankfall.linalg.spectra import singular_values
from rankfall.norms import parse_norm
from rankfall.progress import Progress, silent

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


def examine_equilibrium(built: Equilibrium) -> Examined:
    """The same, with the radius that the family certified in more digits than float64 has."""
    seen = examine(built.layer, built.tokens)
    return replace(seen, certified_radius=built.radius, digits=built.digits)


def every_rank(
    count: int,
    width: int,
    *,
    family: str | None = None,
    norm: str = "unit",
    stable: bool = False,
    progress: Progress = silent,
) -> list[tuple[Equilibrium, Examined]]:
    """One equilibrium of each rank from 1 to the most, all of them fixed under the very same layer.

    That it is the same layer is checked, not assumed.
    """
    inner = inner_width(norm, width)
    most = min(count, inner)
    require(most >= 1, required=f"tokens that the norm {norm} leaves a direction", got=width, remedy="a larger width")
    name = SIGNS if by_coordinates(parse_norm(norm)) else _sharing(count, inner, most, family, stable).name
    if name == SIGNS:
        require_signs(norm, family)
    found: list[tuple[Equilibrium, Examined]] = []
    for rank in range(1, most + 1):
        built = equilibrium_under(norm, count, width, rank, family=name, shared=True)
        if found:
            first = found[0][0].layer
            assert torch.equal(first.value, built.layer.value)
            assert torch.equal(first.allowed, built.layer.allowed)
        found.append((built, examine_equilibrium(built)))
        progress("ranks", rank / most)
    return found


def _sharing(count: int, width: int, most: int, family: str | None, stable: bool) -> EquilibriumFamily:
    """The family that has all ranks under one layer, as asked or chosen."""
    chosen = FAMILIES[family]() if family is not None else _choose(count, width, most, stable)
    require(
        chosen.shares(count, width) and (not stable or _strict(chosen, count, width, most)),
        required="a family with one layer for all ranks" + (", all strictly stable" if stable else ""),
        got=f"{chosen.name} ({chosen.stability})",
        remedy="star has all ranks, window (up to width 9) has them all strictly stable",
    )
    return chosen


def _strict(family: EquilibriumFamily, count: int, width: int, most: int) -> bool:
    reach = family.limit(count, width)
    return most <= reach and all(family.strict(count, width, rank) for rank in range(1, most + 1))


def _choose(count: int, width: int, most: int, stable: bool) -> EquilibriumFamily:
    for family in families():
        if family.shares(count, width) and (not stable or _strict(family, count, width, most)):
            return family
    raise RequestError(
        required="a width of at most 9 for strictly stable equilibria of every rank under one layer",
        got=f"{count} tokens of width {width}",
        remedy="lower the width, or leave out stable",
    )
