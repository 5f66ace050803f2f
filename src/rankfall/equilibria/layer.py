"""Normalised attention layers, whose fixed points are the equilibria."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.catalogue import NORMS
from rankfall.errors import RequestError, require
from rankfall.masks import check_allowed
from rankfall.mechanism.attend import softmax_weights
from rankfall.norms import Norm, parse_norm


@final
@dataclass(frozen=True)
class NormalisedLayer:
    """X' = norm(A X W_V), rows are tokens, A = softmax over the allowed keys of x_i M x_j^T + bias_ij.

    value (d, d)      W_V of paper B, row convention: a token x becomes x W_V
    allowed (n, n)    the mask: token i attends to token j
    form (d, d)       M = W_Q W_K^T / sqrt(d_QK); None means zero: attention does not look at the tokens
    bias (n, n)       scores by position; None means zero. With neither, attention is uniform over the mask
    norm              any that leaves every token at one length: unit (paper B's LayerNorm), rms, layer (centring
                      too); or that maps every coordinate on its own: dyt
    """

    value: Float[Tensor, "d d"]
    allowed: Bool[Tensor, "n n"]
    norm: str = "unit"
    form: Float[Tensor, "d d"] | None = None
    bias: Float[Tensor, "n n"] | None = None

    def __post_init__(self) -> None:
        require(
            self.value.ndim == 2 and self.value.shape[0] == self.value.shape[1] > 0,
            required="a square value matrix (d, d)",
            got=f"shape {tuple(self.value.shape)}",
            remedy="a fixed point needs tokens of one width before and after the layer",
        )
        check_allowed(self.allowed)
        for name, matrix, size in (("form", self.form, self.width), ("bias", self.bias, self.count)):
            require(
                matrix is None or tuple(matrix.shape) == (size, size),
                required=f"{name} of shape ({size}, {size})",
                got=None if matrix is None else f"shape {tuple(matrix.shape)}",
                remedy="the form is between coordinates, the bias between positions",
            )
        token_length(parse_norm(self.norm), self.width)

    @classmethod
    def with_weights(
        cls, weights: Float[Tensor, "n n"], value: Float[Tensor, "d d"], norm: str = "unit"
    ) -> NormalisedLayer:
        """The layer whose attention is the given row-stochastic matrix, written as scores by position."""
        rows = weights.sum(dim=-1)
        require(
            weights.ndim == 2 and bool((weights >= 0).all()) and bool(((rows - 1).abs() < 1e-9).all()),
            required="attention weights that are not negative, with rows that sum to one",
            got=f"least weight {float(weights.min()):.3g}, rows {float(rows.min()):.9g} to {float(rows.max()):.9g}",
            remedy="divide each row by its sum",
        )
        allowed = weights > 0
        uniform = allowed / allowed.sum(dim=-1, keepdim=True)
        flat = bool((weights - uniform).abs().max() < 1e-15)
        # The logarithm of a forbidden pair is never read; zero keeps it finite.
        return cls(value, allowed, norm, bias=None if flat else weights.where(allowed, 1.0).log())

    @property
    def count(self) -> int:
        """Tokens, N."""
        return self.allowed.shape[0]

    @property
    def width(self) -> int:
        """Coordinates, d."""
        return self.value.shape[0]

    @property
    def length(self) -> float:
        """The length of every normalised token, or what distances are measured by: see `token_length`."""
        return token_length(parse_norm(self.norm), self.width)

    @property
    def on_spheres(self) -> bool:
        """Whether all normalised tokens have one length; under a norm of each coordinate they are free."""
        return not by_coordinates(parse_norm(self.norm))

    @property
    def centres(self) -> bool:
        """Whether the norm takes the mean over coordinates off first."""
        return parse_norm(self.norm).centres

    @property
    def freedom(self) -> int:
        """Dimensions of the sphere that a token lives on; all of them where it is free."""
        return max(self.width - 1 - int(self.centres), 0) if self.on_spheres else self.width

    def attention(self, tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "... n n"]:
        """A(X), row-stochastic; one matrix for the whole batch where attention does not look at the tokens."""
        scores = tokens.new_zeros(self.count, self.count) if self.bias is None else self.bias
        if self.form is not None:
            scores = scores + tokens @ self.form @ tokens.mT
        return softmax_weights(scores, self.allowed)

    def mixed(self, tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """A(X) X W_V, before the norm."""
        return self.attention(tokens) @ tokens @ self.value

    def project(self, tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """The norm alone."""
        return parse_norm(self.norm)(tokens)

    def settled(self, tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """Moved tokens put back on their spheres; as they are where tokens are free."""
        return self.project(tokens) if self.on_spheres else tokens

    def step(self, tokens: Float[Tensor, "*batch n d"]) -> Float[Tensor, "*batch n d"]:
        """One layer."""
        self.check(tokens)
        return self.project(self.mixed(tokens))

    def residual(self, tokens: Float[Tensor, "*batch n d"]) -> float:
        """How far the layer moves the farthest-moved token, relative to a token's length: 0 at a fixed point."""
        moved = torch.linalg.vector_norm(self.step(tokens) - tokens, dim=-1).amax()
        return float(moved) / self.length

    def check(self, tokens: Tensor) -> None:
        """Refuse tokens of another shape."""
        require(
            tuple(tokens.shape[-2:]) == (self.count, self.width),
            required=f"tokens of shape ({self.count}, {self.width})",
            got=f"shape {tuple(tokens.shape)}",
            remedy="give one row per token of the mask and one column per coordinate of the value matrix",
        )


def by_coordinates(norm: Norm) -> bool:
    """Whether the norm maps every coordinate on its own, so that tokens live in a box and not on spheres."""
    nothing = torch.zeros((), dtype=torch.float64)
    return norm.secants(nothing, nothing) is not None


def token_length(norm: Norm, width: int) -> float:
    """What distances are relative to: the length of every token; under a norm of coordinates, of a token of ones."""
    return math.sqrt(width) if by_coordinates(norm) else fixed_length(norm, width)


def fixed_length(norm: Norm, width: int) -> float:
    """The length of every token under the norm; a norm that leaves lengths as different as it likes is refused."""
    length = norm.length(width)
    if length is None:
        fitting = [kind.examples()[0] for kind in NORMS]
        names = [str(one) for one in fitting if one.length(width) is not None or by_coordinates(one)]
        raise RequestError(
            required=f"a norm among {', '.join(names)}, which fix the length of tokens or bound their coordinates",
            got=str(norm),
            remedy="take one without an epsilon; without any norm a multiple of a fixed point is another one, so that"
            " no size is kept",
        )
    return length
