"""From the unit norm to true LayerNorm: the same equilibrium in the hyperplane of centred tokens, one width up.

With E (d, d + 1) an orthonormal basis of the vectors orthogonal to (1, ..., 1): tokens sqrt(d + 1) X E and value
matrix E^T W_V E are fixed under LayerNorm exactly when X and W_V are under the unit norm, with the same multipliers.
So under LayerNorm the largest rank is the width less one.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.equilibria.base import Construction
from rankfall.constructions.equilibria.catalogue import build_equilibrium
from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.errors import require


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
