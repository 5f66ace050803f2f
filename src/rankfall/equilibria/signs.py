"""Equilibria under a norm that bounds every coordinate on its own (dynamic tanh): one near every pattern of signs.

Let W_V = w I, let every token give itself at least the weight a > 1/2, and let the norm be tanh(alpha x) of each
coordinate, with gain g = alpha w. Coordinates then do not mix: each is a map of N numbers. Take signs s_i and a level
0 < t < 1. If all s_i x_i >= t, then s_i (A x)_i >= a t - (1 - a), because no other coordinate exceeds 1, so

    tanh(g (a t - (1 - a))) >= t    keeps s_i x_i >= t in the next layer, and
    g (1 - t^2) < 1                 makes the layer a contraction there, in the largest coordinate:

by Banach's theorem the pattern has exactly one fixed point in that box, and it is strictly stable. With a = 3/4 and
g = 8 both hold at t = 0.999. So all 2^(N d) patterns are there under one layer, of every rank, and tokens come back
from wherever all signs are kept at that level. With g <= 1 nothing of this is left: |tanh(g x)| < |x|, and the only
fixed point is zero.

Rank k takes k patterns, repeated over the coordinates. Those of Walsh, (-1)^(bits that i and j share), are
independent for any N >= k: the matrix is a Kronecker power of [[1, 1], [1, -1]] = L diag(1, -2) L^T with L lower
triangular, so that none of its leading minors vanishes.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.equilibria.layer import NormalisedLayer
from rankfall.errors import require
from rankfall.norms import Norm

SIGNS = "signs"
OWN_WEIGHT, GAIN, LEVEL = 0.75, 8.0, 0.999
# The layer contracts there by a factor of at most GAIN (1 - LEVEL^2) = 0.016: nine layers reach rounding.
MOST_LAYERS = 100
FIXED = 1e-13


def walsh_signs(count: int, patterns: int) -> Float[Tensor, "n k"]:
    """Independent patterns of signs, one per column: (-1)^(number of bits that i and j share)."""
    shared = torch.arange(count)[:, None] & torch.arange(patterns)
    bits = max(1, count, patterns).bit_length()
    ones = sum(((shared >> bit) & 1 for bit in range(bits)), start=torch.zeros_like(shared))
    return 1.0 - 2.0 * (ones % 2).double()


def own_attention(count: int) -> Float[Tensor, "n n"]:
    """Causal weights: so much on the token itself, the rest evenly on those before; the first sees itself alone."""
    earlier = torch.ones(count, count, dtype=torch.float64).tril(-1)
    shares = (1 - OWN_WEIGHT) * earlier / earlier.sum(dim=-1, keepdim=True).clamp_min(1.0)
    weights = shares + OWN_WEIGHT * torch.eye(count, dtype=torch.float64)
    weights[0, 0] = 1.0
    return weights


def sign_tokens(
    norm: Norm, count: int, width: int, rank: int
) -> tuple[NormalisedLayer, Float[Tensor, "n d"], dict[str, float | int | str]]:
    """A layer, the same for all ranks, tokens of exactly that rank which it leaves alone, and the numbers chosen."""
    nothing = torch.zeros((), dtype=torch.float64)
    slope = norm.secants(nothing, nothing)
    assert slope is not None
    value = GAIN / float(slope) * torch.eye(width, dtype=torch.float64)
    layer = NormalisedLayer.with_weights(own_attention(count), value, str(norm))
    tokens = walsh_signs(count, rank)[:, torch.arange(width) % rank]
    for _ in range(MOST_LAYERS):
        tokens, before = layer.step(tokens), tokens
        if torch.equal(tokens, before):
            break
    left = layer.residual(tokens)
    require(
        left <= FIXED and math.isfinite(left),
        required="a norm that saturates, so that signs stay what they are",
        got=f"{norm}, whose layer still moves tokens by {left:.2g} of their length",
        remedy="dyt does",
    )
    least = float(tokens.abs().min())
    return layer, tokens, {"own_weight": OWN_WEIGHT, "gain": GAIN, "least_coordinate": least}
