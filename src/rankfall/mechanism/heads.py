"""An attention layer whose query/key rank, value rank and head count are independent: weights and pure function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.errors import require, require_count
from rankfall.linalg.factored import Factored
from rankfall.masks import Mask
from rankfall.mechanism.attend import Kind, attend
from rankfall.mechanism.checks import check_finite, check_tokens


@final
@dataclass(frozen=True)
class Heads:
    """One attention layer, as plain tensors; the axes in front (`...`) may index models.

    query (..., h, d, r)      key (..., g, c, r)      paper A's Q and K, one pair per head
    value (..., g, c, v)      output (..., h, v, o)   V is their product; without `output` each head's o is v
    query_bias (..., h, r)    key_bias (..., g, r)    value_bias (..., g, v)    output_bias (..., o)

    d is the width of the queries' tokens, c that of the keys' (the same in self-attention). g divides h.
    `scale` multiplies the scores: a number, one per head (h,), or None for 1/sqrt(r). A temperature is 1/scale.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor | None = None
    query_bias: Tensor | None = None
    key_bias: Tensor | None = None
    value_bias: Tensor | None = None
    output_bias: Tensor | None = None
    scale: float | Tensor | None = None

    def __post_init__(self) -> None:
        _check_ranks(self)
        _check_partner("value", self.value, self.key.shape[-3:-1], "(..., g, c, v), with the heads and width of key")
        if self.output is not None:
            _check_partner("output", self.output, (self.heads, self.value_rank), "(..., h, v, o)")
        _check_bias("query_bias", self.query_bias, (self.heads, self.rank), "(..., h, r)")
        _check_bias("key_bias", self.key_bias, (self.groups, self.rank), "(..., g, r)")
        _check_bias("value_bias", self.value_bias, (self.groups, self.value_rank), "(..., g, v)")
        _check_bias("output_bias", self.output_bias, (self.out_width,), "(..., o)")

    @property
    def heads(self) -> int:
        """Query heads, h; H in paper A."""
        return self.query.shape[-3]

    @property
    def groups(self) -> int:
        """Key/value heads, g."""
        return self.key.shape[-3]

    @property
    def width(self) -> int:
        """Width d of the tokens that are queries."""
        return self.query.shape[-2]

    @property
    def rank(self) -> int:
        """Query/key rank r."""
        return self.query.shape[-1]

    @property
    def value_rank(self) -> int:
        """Value rank v."""
        return self.value.shape[-1]

    @property
    def out_width(self) -> int:
        """Width o of the layer's output."""
        return self.value_rank if self.output is None else self.output.shape[-1]

    @classmethod
    def random(
        cls,
        heads: int,
        width: int,
        rank: int,
        *,
        value_rank: int | None = None,
        groups: int | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
    ) -> Heads:
        """Gaussian weights with variance 1/fan-in, no biases: scores and outputs of order one on unit-size tokens."""
        require_count("heads", heads)
        groups = require_count("groups", heads if groups is None else groups)
        value_rank = rank if value_rank is None else value_rank

        def draw(*shape: int) -> Tensor:
            drawn = torch.randn(*shape, generator=generator, dtype=dtype, device=device)
            return drawn * float(shape[-2]) ** -0.5

        return cls(
            query=draw(heads, width, rank),
            key=draw(groups, width, rank),
            value=draw(groups, width, value_rank),
            output=draw(heads, value_rank, width) * heads**-0.5,
        )


def bilinear_forms(heads: Heads) -> Factored:
    """K Q^T of every head, factored: the score of token x for query y is x^T K Q^T y (biases left out)."""
    key = heads.key
    if heads.groups != heads.heads:
        key = key.repeat_interleave(heads.heads // heads.groups, dim=-3)
    require(
        key.shape[-2] == heads.width,
        required="queries and keys of one width, for a square form",
        got=f"widths {heads.width} and {key.shape[-2]}",
        remedy="pad the narrower with zero rows",
    )
    return Factored(key, heads.query)


def value_forms(heads: Heads) -> Tensor:
    """V O of every head, multiplied out: (..., h, c, o)."""
    value = heads.value.repeat_interleave(heads.heads // heads.groups, dim=-3)
    return value if heads.output is None else value @ heads.output


def _check_ranks(heads: Heads) -> None:
    query, key = heads.query, heads.key
    shapes = f"query {tuple(query.shape)}, key {tuple(key.shape)}"
    require(
        query.ndim >= 3 and key.ndim >= 3 and query.shape[-1] == key.shape[-1],
        required="query (..., h, d, r) and key (..., g, c, r) of one rank r",
        got=shapes,
        remedy="give both the same last axis",
    )
    require(
        query.shape[-3] > 0 and key.shape[-3] > 0 and query.shape[-3] % key.shape[-3] == 0,
        required="at least one head, and a whole number of query heads for each key/value head",
        got=shapes,
        remedy="choose h >= 1 as a multiple of g",
    )
    require(
        0 < query.shape[-1] <= min(query.shape[-2], key.shape[-2]),
        required="a rank r between 1 and the width d",
        got=shapes,
        remedy="a head cannot have more rank than its tokens have coordinates; lower r",
    )


def _check_partner(name: str, tensor: Tensor, expected: tuple[int, ...], axes: str) -> None:
    require(
        tensor.ndim >= 3 and tuple(tensor.shape[-3:-1]) == tuple(expected) and tensor.shape[-1] > 0,
        required=f"{name} of shape {axes}",
        got=f"shape {tuple(tensor.shape)} where {tuple(expected)} was due on axes -3 and -2",
        remedy="transpose or slice it to those axes",
    )


def _check_bias(name: str, tensor: Tensor | None, expected: tuple[int, ...], axes: str) -> None:
    if tensor is not None:
        require(
            tuple(tensor.shape[-len(expected) :]) == expected,
            required=f"{name} of shape {axes}",
            got=f"shape {tuple(tensor.shape)} where {expected} was due on the last axes",
            remedy="give one number per head and coordinate",
        )


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
