"""Every family of equilibria, which one serves a request best, and the step to true LayerNorm."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.catalogue import FAMILIES
from rankfall.equilibria.base import Construction, Family, NormalisedLayer, check_request
from rankfall.errors import RequestError, require


def families() -> tuple[Family, ...]:
    """Every family, best conditioned first."""
    return tuple(kind() for kind in FAMILIES)


def choose_family(count: int, width: int, rank: int, *, stable: bool = False) -> Family:
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
) -> Construction:
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


def under_layer_norm(inner: Construction) -> Construction:
    """The same equilibrium under LayerNorm, its width one more."""
    layer = inner.layer
    basis = centred_basis(layer.width + 1)
    form = None if layer.form is None else basis.mT @ layer.form @ basis / (layer.width + 1)
    lifted = NormalisedLayer(basis.mT @ layer.value @ basis, layer.allowed, "layer", form, layer.bias)
    return replace(inner, layer=lifted, tokens=inner.tokens @ basis * lifted.length)


def equilibrium_under(
    norm: str,
    count: int,
    width: int,
    rank: int,
    *,
    family: str | None = None,
    stable: bool = False,
    shared: bool = False,
) -> Construction:
    """`build_equilibrium` under the given norm, unit or layer; `width` is the tokens' own."""
    require(
        norm in ("unit", "layer"),
        required="a norm among unit, layer",
        got=norm,
        remedy="the rms norm is the unit norm times sqrt(d): the same equilibria",
    )
    if norm == "unit":
        return build_equilibrium(count, width, rank, family=family, stable=stable, shared=shared)
    require(
        width >= 2 and rank <= min(count, width - 1),
        required=f"a rank of at most {min(count, width - 1)} under LayerNorm, whose tokens are centred",
        got=f"rank {rank} at width {width}",
        remedy="ask for a lower rank or one more coordinate",
    )
    return under_layer_norm(build_equilibrium(count, width - 1, rank, family=family, stable=stable, shared=shared))
