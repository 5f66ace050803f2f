"""The frame that the two-layer constructions share: votes for codes in layer 1, the winner's content in layer 2.

Slots: content (d) | code (c) | vote (c) | out (d). Layer 1's rank-1 heads compare one direction of content each and
copy codes, weighted, into the vote slot. Layer 2's one head compares the vote with every code and copies content.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention import Heads
from rankfall.attention.weights import Kind
from rankfall.constructions.network import Layer, Network, embed


def two_layer_network(
    query: Float[Tensor, "h d"],
    key: Float[Tensor, "h d"],
    weight: Float[Tensor, " h"],
    codes: Float[Tensor, "n c"],
    *,
    gain: float = 1.0,
    kind: Kind = "hardmax",
    second_gain: float = 1.0,
    second_kind: Kind = "hardmax",
) -> Network:
    """Heads (query_h, key_h) vote with `weight`; gains scale the scores, which only softmax notices.

    Layer 1 has h heads of rank 1, layer 2 one head whose rank is the width c of a code.
    """
    h, d = query.shape
    c = codes.shape[-1]
    width = d + c + c + d
    content, code, vote, out = 0, d, d + c, d + 2 * c
    eye_c, eye_d = torch.eye(c, dtype=query.dtype), torch.eye(d, dtype=query.dtype)
    first = Heads(
        query=embed(query.unsqueeze(-1), width, content),
        key=embed(key.unsqueeze(-1), width, content),
        value=embed(eye_c, width, code).expand(h, width, c),
        output=weight.reshape(h, 1, 1) * embed(eye_c, width, vote).mT,
        scale=gain,
    )
    second = Heads(
        query=embed(eye_c, width, vote).unsqueeze(0),
        key=embed(eye_c, width, code).unsqueeze(0),
        value=embed(eye_d, width, content).unsqueeze(0),
        output=embed(eye_d, width, out).mT.unsqueeze(0),
        scale=second_gain,
    )
    return Network(
        layers=(Layer(first, kind), Layer(second, second_kind)),
        dim=d,
        width=width,
        codes=codes,
        answer_at=out,
    )


def sign_codes(dtype: torch.dtype = torch.float64) -> Float[Tensor, "2 1"]:
    """+1 and -1: two points need one coordinate."""
    return torch.tensor([[1.0], [-1.0]], dtype=dtype)


def frame_codes(
    points: int, rank: int, generator: torch.Generator | None = None, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "n c"]:
    """n codes in `rank` coordinates: one-hot for rank n, a simplex for n - 1, a random tight frame below that.

    Votes for one-hot codes keep every point's score apart. The simplex loses only their sum, which no choice needs.
    Below n - 1 coordinates the scores of different points mix.
    """
    eye = torch.eye(points, dtype=dtype)
    if rank >= points:
        return eye
    # An orthonormal basis of the vectors with sum zero; rotated, so that a cut to `rank` columns favours no point.
    basis = torch.linalg.svd(eye - 1 / points).U[:, : points - 1]
    if rank < points - 1:
        rotation = torch.linalg.qr(torch.randn(points - 1, points - 1, generator=generator, dtype=dtype)).Q
        basis = basis @ rotation[:, :rank]
    return basis
