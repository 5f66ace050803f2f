"""Outside B-thm2's hemisphere: tokens at +v and -v, which sharp attention holds apart for very long.

With scores b <x_i, x_j> and W_V = I every token stays in {+v, -v}; its mix has length c_i = |sum_j a_ij s_j|. On the
tangent space (every direction orthogonal to v alike) the layer acts as diag(1/c) A up to signs: multipliers above one
if the mask connects both signs, but only by about e^(-2b): metastable, not stable. Nothing collapses meanwhile.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention.masks import Mask
from rankfall.constructions.equilibria.base import Construction
from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.errors import require, require_count


def antipodal(signs: Float[Tensor, n], width: int, sharpness: float, mask: Mask) -> Construction:
    """Tokens s_i e_1 under scores `sharpness` * <x_i, x_j> on that mask, where no token flips or vanishes."""
    require_count("the width", width)
    require(
        bool((signs.abs() == 1).all()),
        required="signs of +1 or -1",
        got=signs.tolist(),
        remedy="give one sign per token",
    )
    count = len(signs)
    eye = torch.eye(width, dtype=torch.float64)
    layer = NormalisedLayer(eye, mask.dense(count), form=sharpness * eye)
    tokens = torch.zeros(count, width, dtype=torch.float64)
    tokens[:, 0] = signs
    kept = layer.mixed(tokens)[:, 0] * signs
    require(
        bool((kept > 1e-12).all()),
        required="every token to outweigh those of the other sign that it sees",
        got=f"token {int(kept.argmin())} mixed to {float(kept.min()):.3g} times itself",
        remedy="raise the sharpness, or balance the signs",
    )
    return Construction("antipodal", 1, layer, tokens, {"sharpness": sharpness})


def antipodal_multipliers(construction: Construction) -> Float[Tensor, n]:
    """Eigenvalues of diag(1/c) A, each met width - 1 times by the Jacobian."""
    layer, tokens = construction.layer, construction.tokens
    weights = layer.attention(tokens)
    lengths = torch.linalg.vector_norm(weights @ tokens, dim=-1)
    return torch.linalg.eigvals(weights / lengths[:, None])
