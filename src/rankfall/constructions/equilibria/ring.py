"""Outside B-thm2's hemisphere: twisted states on a ring, which are stable in the plane.

Ring mask (token i sees its `reach` neighbours on either side), uniform attention, W_V = I. Tokens turned by phi =
2 pi q / N from one to the next are fixed when D = sum_s cos(s phi) > 0 (reach 1: |q| < N/3), s from -reach to reach.
With k = 2 pi m / N, m = 0 .. N-1, the multipliers are
    in the plane:   sum_s cos(s phi) cos(s k) / D    (reach 1: (1 + 2 cos phi cos k)/(1 + 2 cos phi))
    out of it:      sum_s cos(s k) / D, each d - 2 times.
For reach 1 and |q| < N/4 those in the plane lie below one but for the rigid rotation (m = 0): strongly connected,
orthogonal value matrix, and no collapse. Out of the plane (d >= 3) the largest is (2 reach + 1)/D > 1: unstable.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention.masks import Ring
from rankfall.constructions.equilibria.base import Construction
from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.errors import require, require_count


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
