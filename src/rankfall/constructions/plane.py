"""The plane, where everything about rank-1 hardmax heads has a closed form: what its constructions share.

A head (q, k) outputs (u + s w)/sqrt2 with s = sgn<k,w> sgn<q,y>, u and w being the points' normalised sum and
difference.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention import Heads
from rankfall.constructions.base import Construction
from rankfall.constructions.network import Layer, Network
from rankfall.errors import require


def rank_one_layer(query: Float[Tensor, "h d"], key: Float[Tensor, "h d"], weight: Float[Tensor, " h"]) -> Network:
    """One layer of rank-1 hardmax heads with values weight_h * I."""
    d = query.shape[-1]
    eye = torch.eye(d, dtype=query.dtype)
    heads = Heads(query=query.unsqueeze(-1), key=key.unsqueeze(-1), value=weight.reshape(-1, 1, 1) * eye, scale=1.0)
    return Network((Layer(heads, "hardmax"),), dim=d, width=d, residual=False)


def unit_vectors(angle: Float[Tensor, " h"]) -> Float[Tensor, "h 2"]:
    """(cos, sin)."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


def require_plane(construction: Construction) -> None:
    """Refuse any other dimension or number of points."""
    require(
        construction.dim == 2 and construction.points == 2,
        required="the plane and two points",
        got=f"d={construction.dim}, {construction.points} points",
        remedy="leave dim and points out",
    )
