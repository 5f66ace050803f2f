"""The derivative of a normalised layer on the product of spheres that its tokens live on.

Row convention, token i: y_i = sum_j a_ij x_j W, x'_i = l u_i with u_i = C y_i / |C y_i| (C centres, for LayerNorm).
With a constant attention matrix, dx'_i = (l / |C y_i|) (sum_j a_ij dx_j W) C (I - u_i^T u_i). Attention that looks
at the tokens adds, with m_i = sum_j a_ij x_j and S_i = sum_j a_ij (x_j - m_i)^T (x_j - m_i),
    dx_i M S_i W    (token i asks differently)    and    a_ij (x_i M dx_j^T)(x_j - m_i) W    (token j answers so).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.constructions.equilibria.layer import NormalisedLayer
from rankfall.errors import require


def tangent_bases(layer: NormalisedLayer, tokens: Float[Tensor, "n d"]) -> Float[Tensor, "n f d"]:
    """For each token an orthonormal basis of its sphere's tangent space; f = d - 1, or d - 2 under LayerNorm."""
    normals = tokens[:, None, :]
    if layer.centres:
        normals = torch.cat([normals, torch.ones_like(normals)], dim=1)
    _, _, right = torch.linalg.svd(normals, full_matrices=True)
    return right[:, layer.width - layer.freedom :, :] if layer.freedom else right[:, :0, :]


def jacobian(
    layer: NormalisedLayer,
    tokens: Float[Tensor, "n d"],
    among: Tensor | None = None,
    onto: Float[Tensor, "n f d"] | None = None,
) -> Float[Tensor, "m m"]:
    """The Jacobian in tangent coordinates, rows the outputs; `among` picks some tokens (indices).

    Inputs and outputs are in the bases `onto`, by default those of `tangent_bases`: at a fixed point the output
    lies where the input does. Elsewhere the derivative is still exact, read along the input's tangent space.
    """
    layer.check(tokens)
    chosen = torch.arange(layer.count) if among is None else among
    weights = layer.attention(tokens)
    mixed = weights @ tokens @ layer.value
    centred = mixed - mixed.mean(dim=-1, keepdim=True) if layer.centres else mixed
    lengths = torch.linalg.vector_norm(centred, dim=-1)
    require(
        bool((lengths > 0).all()),
        required="tokens that the layer does not send to zero",
        got=f"a zero vector at token {int(lengths.argmin())}",
        remedy="the norm has no derivative there; move the tokens",
    )
    ins = (tangent_bases(layer, tokens) if onto is None else onto)[chosen]
    # The derivative of the norm takes off what lies along the output (and the mean), then we read along `ins`.
    ends = centred[chosen] / lengths[chosen][:, None]
    outs = ins - torch.einsum("ifd,id,ie->ife", ins, ends, ends)
    # blocks[i, j] maps tangent coordinates of token j to those of token i.
    moved = torch.einsum("jfd,de,ige->ijgf", ins, layer.value, outs)
    blocks = weights[chosen][:, chosen, None, None] * moved
    if layer.form is not None:
        blocks = blocks + _content(layer, tokens, weights, ins, outs, chosen)
    blocks = blocks * (layer.length / lengths[chosen])[:, None, None, None]
    size = len(chosen) * layer.freedom
    return blocks.permute(0, 2, 1, 3).reshape(size, size)


def _content(
    layer: NormalisedLayer, tokens: Tensor, weights: Tensor, ins: Tensor, outs: Tensor, chosen: Tensor
) -> Tensor:
    assert layer.form is not None
    means = weights @ tokens
    spread = tokens[None, :, :] - means[chosen][:, None, :]
    landed = torch.einsum("ijd,de,ige->ijg", spread, layer.value, outs)
    answers = torch.einsum("id,de,jfe->ijf", tokens[chosen], layer.form, ins)
    blocks = weights[chosen][:, chosen, None, None] * landed[:, chosen, :, None] * answers[:, :, None, :]
    # x_i itself asks: dx_i M sum_j a_ij x_j^T (x_j - m_i) W.
    asks = torch.einsum("ifd,de,je->ijf", ins, layer.form, tokens)
    own = torch.einsum("ij,ijg,ijf->igf", weights[chosen], landed, asks)
    diagonal = torch.arange(len(chosen))
    blocks[diagonal, diagonal] = blocks[diagonal, diagonal] + own
    return blocks
