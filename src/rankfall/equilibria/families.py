"""What a family of equilibria is, which one serves a request best, and the step from the unit norm to another."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.catalogue import FAMILIES
from rankfall.equilibria.layer import NormalisedLayer, by_coordinates, fixed_length
from rankfall.equilibria.signs import SIGNS, sign_tokens
from rankfall.errors import RequestError, require, require_count
from rankfall.norms import UNIT_NORM, Norm, parse_norm


@final
@dataclass(frozen=True)
class Equilibrium:
    """A layer and its fixed tokens (n, d), as a family built them.

    `radius` is the Jacobian's spectral radius where the family knows it better than float64 can compute it, with
    `digits` decimal digits carried; `parameters` are the numbers that the family chose.
    """

    family: str
    rank: int
    layer: NormalisedLayer
    tokens: Float[Tensor, "n d"]
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    radius: float | None = None
    digits: int | None = None


class EquilibriumFamily(ABC):
    """One way to build equilibria of B-thm3. Subclasses are final and stateless."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    mask: ClassVar[str]
    stability: ClassVar[str]
    """What the family's Jacobian is like, in words."""

    @abstractmethod
    def limit(self, count: int, width: int) -> int:
        """The largest rank that this family reaches in float64 for that many tokens of that width."""

    def strict(self, count: int, width: int, rank: int) -> bool:
        """Whether that equilibrium is strictly stable (spectral radius below one)."""
        return False

    @abstractmethod
    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Equilibrium:
        """The equilibrium; with `shared`, all ranks of one count and width are fixed under one layer."""

    def shares(self, count: int, width: int) -> bool:
        """Whether one layer has equilibria of every rank up to min(count, width) in this family."""
        return self.limit(count, width) == min(count, width)

    def __call__(self, count: int, width: int, rank: int, *, shared: bool = False) -> Equilibrium:
        """Build, after checking the request."""
        check_request(count, width, rank)
        most = self.limit(count, width)
        require(
            rank <= most,
            required=f"a rank of at most {most} for family {self.name} at {count} tokens of width {width}",
            got=rank,
            remedy="ask for a lower rank, or for family star, which has every rank",
        )
        return self.build(count, width, rank, shared=shared)


def check_request(count: int, width: int, rank: int) -> None:
    """Refuse what no family can build."""
    require_count("the number of tokens", count)
    require_count("the width", width)
    require_count("the rank", rank)
    require(
        rank <= min(count, width),
        required=f"a rank of at most {min(count, width)}, the lesser of {count} tokens and width {width}",
        got=rank,
        remedy="ask for a lower rank, more tokens or more width",
    )


def families() -> tuple[EquilibriumFamily, ...]:
    """Every family, best conditioned first."""
    return tuple(kind() for kind in FAMILIES)


def choose_family(count: int, width: int, rank: int, *, stable: bool = False) -> EquilibriumFamily:
    """The first family, best conditioned first, that builds this rank, strictly stable where that is asked."""
    check_request(count, width, rank)
    for family in families():
        if rank <= family.limit(count, width) and (not stable or family.strict(count, width, rank)):
            return family
    most = max(
        (k for k in range(1, rank) if any(f.strict(count, width, k) for f in families())),
        default=1,
    )
    raise RequestError(
        required=f"a rank of at most {most} for a strictly stable equilibrium of {count} tokens of width {width}",
        got=rank,
        remedy="float64 cannot resolve a stable one beyond; without stable, family star has every rank",
    )


def build_equilibrium(
    count: int, width: int, rank: int, *, family: str | None = None, stable: bool = False, shared: bool = False
) -> Equilibrium:
    """Weights and tokens of exactly that rank which the layer leaves alone (B-thm3), under the unit norm.

    `stable` asks for a strictly stable one, `shared` for the layer that all ranks of the family have in common.
    """
    if family is None:
        return choose_family(count, width, rank, stable=stable)(count, width, rank, shared=shared)
    chosen = FAMILIES[family]()
    check_request(count, width, rank)
    if stable and not (rank <= chosen.limit(count, width) and chosen.strict(count, width, rank)):
        raise RequestError(
            required=f"a strictly stable member of family {chosen.name} ({chosen.stability})",
            got=f"{count} tokens of width {width}, rank {rank}",
            remedy="leave the family out, so that one is chosen",
        )
    return chosen(count, width, rank, shared=shared)


def centred_basis(width: int) -> Float[Tensor, "e d"]:
    """Helmert's orthonormal basis of the vectors of that width with zero mean, one per row."""
    rows = torch.zeros(width - 1, width, dtype=torch.float64)
    for i in range(width - 1):
        rows[i, : i + 1] = 1.0
        rows[i, i + 1] = -(i + 1)
        rows[i] /= math.sqrt((i + 1) * (i + 2))
    return rows


def under_norm(inner: Equilibrium, norm: Norm) -> Equilibrium:
    """An equilibrium of the unit norm under another one: tokens of its length, one width up where it centres."""
    layer = inner.layer
    basis = centred_basis(layer.width + 1) if norm.centres else torch.eye(layer.width, dtype=torch.float64)
    length = fixed_length(norm, basis.shape[1])
    form = None if layer.form is None else basis.mT @ layer.form @ basis / length**2
    lifted = NormalisedLayer(basis.mT @ layer.value @ basis, layer.allowed, str(norm), form, layer.bias)
    return replace(inner, layer=lifted, tokens=inner.tokens @ basis * length)


def inner_width(norm: str, width: int) -> int:
    """Coordinates that tokens of that width are free in: a norm that centres takes one."""
    return width - int(parse_norm(norm).centres)


def require_signs(norm: str, family: str | None) -> None:
    """Under a norm of each coordinate there is one family, and it has no other norm."""
    require(
        family in (None, SIGNS),
        required=f"family {SIGNS} under the norm {norm}, which leaves tokens at no one length",
        got=str(family),
        remedy="leave the family out",
    )


def equilibrium_under(
    norm: str,
    count: int,
    width: int,
    rank: int,
    *,
    family: str | None = None,
    stable: bool = False,
    shared: bool = False,
) -> Equilibrium:
    """`build_equilibrium` under any norm of one length, family `signs` under a norm of each coordinate; `width` is
    the tokens' own."""
    chosen, inner = parse_norm(norm), inner_width(norm, width)
    if by_coordinates(chosen):
        require_signs(norm, family)
        check_request(count, width, rank)
        layer, tokens, parameters = sign_tokens(chosen, count, width, rank)
        return Equilibrium(SIGNS, rank, layer, tokens, parameters)
    fixed_length(chosen, max(width, 1))
    require(
        not chosen.centres or width >= 2,
        required=f"a width of at least 2 under {type(chosen).__name__}, which makes one coordinate zero",
        got=width,
        remedy="one more coordinate, or a norm that does not centre, such as rms",
    )
    require(
        not chosen.centres or rank <= min(count, inner),
        required=f"a rank of at most {min(count, inner)} under {type(chosen).__name__}, whose tokens are centred",
        got=f"rank {rank} at width {width}",
        remedy="ask for a lower rank or one more coordinate",
    )
    built = build_equilibrium(count, inner, rank, family=family, stable=stable, shared=shared)
    return built if chosen == UNIT_NORM else under_norm(built, chosen)
