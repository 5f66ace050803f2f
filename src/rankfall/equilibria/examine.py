"""Everything we say about an equilibrium: residual, rank, stability, recovery, all ranks of a layer; as a record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
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
from rankfall.errors import RequestError, require, require_count
from rankfall.linalg.spectra import singular_values
from rankfall.norms import parse_norm
from rankfall.progress import Progress, silent
from rankfall.sources import read_json

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


# After noise in every layer, so many without: what only the noise held up is gone then.
QUIET_LAYERS = 500


@final
@dataclass(frozen=True)
class Recovery:
    """One disturbed run. Distances are the farthest token's, relative to a token's length."""

    disturbed_by: float
    distance: float
    rank: int
    residual: float
    layers: int
    every_layer: bool

    @property
    def returned(self) -> bool:
        """Whether the tokens came back to where they were: a hundredth of the way is left, or less."""
        return self.distance <= 0.01 * self.disturbed_by


def recoveries(
    layer: NormalisedLayer,
    tokens: Float[Tensor, "n d"],
    size: float,
    *,
    layers: int = 2000,
    draws: int = 1,
    every_layer: bool = False,
    generator: torch.Generator | None = None,
    progress: Progress = silent,
) -> list[Recovery]:
    """Move every token by `size` (relative to its length) in a random direction, then run that many layers.

    With `every_layer` the tokens are moved before each of them, and QUIET_LAYERS follow without: the noise itself has
    full rank. Rank at the end counts singular values above 1e-6 of the largest: what still shrinks does not count.
    """
    require_count("the number of layers", layers)
    require_count("the number of draws", draws)
    require(
        0 < size < 1,
        required="a disturbance between 0 and 1, relative to a token's length",
        got=size,
        remedy="for example 1e-3",
    )
    found = []
    for draw in range(draws):
        now = _moved(layer, tokens, size, generator)
        start = _farthest(layer, now, tokens)
        for step in range(layers):
            now = layer.step(_moved(layer, now, size, generator) if every_layer and step > 0 else now)
        for _ in range(QUIET_LAYERS if every_layer else 0):
            now = layer.step(now)
        end, rank = _farthest(layer, now, tokens), numerical_rank(now, 1e-6)
        found.append(Recovery(start, end, rank, layer.residual(now), layers, every_layer))
        progress(f"running {layers} layers", (draw + 1) / draws)
    return found


def _moved(layer: NormalisedLayer, tokens: Tensor, size: float, generator: torch.Generator | None) -> Tensor:
    noise = torch.randn(tokens.shape, generator=generator, dtype=torch.float64)
    noise = noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    return layer.settled(tokens + size * layer.length * noise)


def _farthest(layer: NormalisedLayer, now: Tensor, then: Tensor) -> float:
    return float(torch.linalg.vector_norm(now - then, dim=-1).amax()) / layer.length


def ladder(
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
    rungs: list[tuple[Equilibrium, Examined]] = []
    for rank in range(1, most + 1):
        built = equilibrium_under(norm, count, width, rank, family=name, shared=True)
        if rungs:
            first = rungs[0][0].layer
            assert torch.equal(first.value, built.layer.value)
            assert torch.equal(first.allowed, built.layer.allowed)
        rungs.append((built, examine_equilibrium(built)))
        progress("ranks", rank / most)
    return rungs


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


MATRICES = ("tokens", "value", "attention")


def to_document(layer: NormalisedLayer, tokens: Tensor) -> dict[str, Any]:
    """Tokens, value matrix, attention matrix and norm."""
    return {
        "tokens": tokens.tolist(),
        "value": layer.value.tolist(),
        "attention": layer.attention(tokens).tolist(),
        "norm": layer.norm,
    }


def from_document(document: Mapping[str, Any]) -> tuple[NormalisedLayer, Tensor]:
    """The layer (attention as a constant matrix) and the tokens of a record."""
    tokens, value, attention = (_matrix(document, name) for name in MATRICES)
    require(
        value.shape[0] == value.shape[1] == tokens.shape[1] and attention.shape == (len(tokens), len(tokens)),
        required="tokens (n, d), a square value matrix (d, d) and attention (n, n)",
        got=f"tokens {tuple(tokens.shape)}, value {tuple(value.shape)}, attention {tuple(attention.shape)}",
        remedy="a file that `rankfall equilibrium --json` printed fits",
    )
    layer = NormalisedLayer.with_weights(attention, value, str(document.get("norm", "unit")))
    return layer, tokens


def read_document(path: Path) -> tuple[NormalisedLayer, Tensor]:
    """The same from a JSON file."""
    try:
        document = read_json(path)
    except OSError as error:
        raise RequestError(
            required="a readable JSON file", got=f"{path}: {error.strerror}", remedy="check the path"
        ) from error
    except ValueError as error:
        raise RequestError(
            required="a JSON file", got=f"{path}: {error}", remedy="write it with `rankfall equilibrium --json`"
        ) from error
    require(
        isinstance(document, dict),
        required="one JSON object with tokens, value and attention",
        got=type(document).__name__,
        remedy="write it with `rankfall equilibrium --json`",
    )
    return from_document(document)


def _matrix(document: Mapping[str, Any], name: str) -> Tensor:
    try:
        matrix = torch.tensor(document[name], dtype=torch.float64)
    except (KeyError, TypeError, ValueError) as error:
        raise RequestError(
            required=f"a matrix of numbers named {name}",
            got=f"{type(error).__name__}: {error}",
            remedy="write the file with `rankfall equilibrium --json`",
        ) from error
    require(
        matrix.ndim == 2 and matrix.numel() > 0 and bool(torch.isfinite(matrix).all()),
        required=f"{name} as a matrix of finite numbers",
        got=f"shape {tuple(matrix.shape)}",
        remedy="give one row per token or coordinate",
    )
    return matrix
