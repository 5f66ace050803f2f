"""Outside B-thm2's hemisphere: tokens at +v and -v, and twisted states on a ring."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.base import Construction, NormalisedLayer
from rankfall.errors import require, require_count
from rankfall.masks import Mask, Ring


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


def twisted(count: int, turns: int, width: int = 2, reach: int = 1) -> Construction:
    """Tokens that turn `turns` times on the way around the ring."""
    require_count("the number of tokens", count, least=3)
    require_count("the width", width, least=2)
    require(
        2 * reach < count,
        required=f"a ring longer than its window of {2 * reach + 1}",
        got=count,
        remedy="use more tokens, or the complete mask",
    )
    require(
        _sum(count, turns, reach) > 1e-9,
        required="neighbours that do not outweigh the token itself (reach 1: |turns| < N/3)",
        got=f"turns {turns} at {count} tokens",
        remedy="turn less often",
    )
    angles = 2 * math.pi * turns / count * torch.arange(count, dtype=torch.float64)
    tokens = torch.zeros(count, width, dtype=torch.float64)
    tokens[:, 0], tokens[:, 1] = angles.cos(), angles.sin()
    layer = NormalisedLayer(torch.eye(width, dtype=torch.float64), Ring(reach).dense(count))
    parameters = {"turns": turns, "reach": reach}
    return Construction("twisted", 1 if turns % count == 0 else 2, layer, tokens, parameters)


def twisted_multipliers(count: int, turns: int, reach: int = 1) -> tuple[Float[Tensor, n], Float[Tensor, n]]:
    """In the plane, and out of it (each width - 2 times); mode m at index m, the rigid rotation first."""
    shifts = torch.arange(-reach, reach + 1, dtype=torch.float64)
    modes = 2 * math.pi / count * torch.arange(count, dtype=torch.float64)
    waves = (shifts[None, :] * modes[:, None]).cos()
    turned = (shifts * 2 * math.pi * turns / count).cos()
    total = _sum(count, turns, reach)
    return (waves * turned).sum(dim=-1) / total, waves.sum(dim=-1) / total


def _sum(count: int, turns: int, reach: int) -> float:
    return sum(math.cos(2 * math.pi * turns * s / count) for s in range(-reach, reach + 1))
