"""A whole attention layer as a pure function of its weights and tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention.attend import attend
from rankfall.attention.checks import check_finite, check_tokens
from rankfall.attention.heads import Heads
from rankfall.attention.masks.base import Mask
from rankfall.attention.weights import Kind
from rankfall.errors import require


def attention(
    heads: Heads,
    tokens: Tensor,
    context: Tensor | None = None,
    mask: Mask | Tensor | None = None,
    *,
    score_bias: Tensor | None = None,
    kind: Kind = "softmax",
    validate: bool = True,
) -> Tensor:
    """Attend from (..., n, d) tokens to (..., m, c) context (default: the tokens): (..., n, o), summed over heads.

    `validate=False` leaves out the look for NaN and infinities, which a compiled or captured program cannot have.
    """
    context = tokens if context is None else context
    _check(heads, tokens, context, validate)
    query = project(tokens, heads.query, heads.query_bias)
    key = project(context, heads.key, heads.key_bias)
    value = project(context, heads.value, heads.value_bias)
    out = attend(query, key, value, mask, scale=heads.scale, score_bias=score_bias, kind=kind)
    return combine(out, heads.output, heads.output_bias)


def project(
    tokens: Float[Tensor, "*batch n d"], weight: Float[Tensor, "*model h d r"], bias: Tensor | None = None
) -> Float[Tensor, "... h n r"]:
    """Every head's linear map of every token."""
    projected = torch.einsum("...nd,...hdr->...hnr", tokens, weight)
    return projected if bias is None else projected + bias[..., None, :]


def combine(
    out: Float[Tensor, "... h n v"], weight: Float[Tensor, "*model h v o"] | None, bias: Tensor | None = None
) -> Float[Tensor, "... n o"]:
    """Sum over heads of each head's output map."""
    combined = out.sum(dim=-3) if weight is None else torch.einsum("...hnv,...hvo->...no", out, weight)
    return combined if bias is None else combined + bias[..., None, :]


def _check(heads: Heads, tokens: Tensor, context: Tensor, validate: bool) -> None:
    for name, given, width in (("tokens", tokens, heads.width), ("context", context, heads.key.shape[-2])):
        check_tokens(given, name)
        require(
            given.shape[-1] == width,
            required=f"{name} of width {width}, as the heads have",
            got=f"shape {tuple(given.shape)}",
            remedy="project the tokens or build the heads for that width",
        )
        if validate:
            check_finite(given, name)
