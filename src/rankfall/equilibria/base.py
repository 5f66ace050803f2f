"""Normalised attention layers whose fixed points we construct, and what a family of equilibria is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import ClassVar, final

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from rankfall.errors import RequestError, require, require_count
from rankfall.masks import check_allowed
from rankfall.mechanism.attend import softmax_weights
from rankfall.norms import parse_norm

# What each norm leaves of a token: the length it gives, as a power of the width, and whether it centres first.
SPHERES: dict[str, tuple[float, bool]] = {"unit": (0.0, False), "rms": (0.5, False), "layer": (0.5, True)}


@final
@dataclass(frozen=True)
class NormalisedLayer:
    """X' = norm(A X W_V), rows are tokens, A = softmax over the allowed keys of x_i M x_j^T + bias_ij.

    value (d, d)      W_V of paper B, row convention: a token x becomes x W_V
    allowed (n, n)    the mask: token i attends to token j
    form (d, d)       M = W_Q W_K^T / sqrt(d_QK); None means zero: attention does not look at the tokens
    bias (n, n)       scores by position; None means zero. With neither, attention is uniform over the mask
    norm              unit (paper B's LayerNorm), rms, or layer (centring too)
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
        require(
            self.norm in SPHERES,
            required=f"a norm among {', '.join(SPHERES)}",
            got=self.norm,
            remedy="without a norm the tokens only collapse; unit is paper B's",
        )

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
        """The length of every normalised token."""
        return float(self.width ** SPHERES[self.norm][0])

    @property
    def centres(self) -> bool:
        """Whether the norm takes the mean over coordinates off first."""
        return SPHERES[self.norm][1]

    @property
    def freedom(self) -> int:
        """Dimensions of the sphere that a token lives on."""
        return max(self.width - 1 - int(self.centres), 0)

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


@final
@dataclass(frozen=True)
class Construction:
    """A layer and its fixed tokens (n, d), as a family built them.

    `radius` is the Jacobian's spectral radius where the family knows it better than float64 can compute it, with
    `digits` decimal digits carried; `parameters` are the numbers that the family chose.
    """

    family: str
    rank: int
    layer: NormalisedLayer
    tokens: Float[Tensor, "n d"]
    parameters: Mapping[str, float | int | str] = field(default_factory=dict)
    radius: float | None = None
    digits: int | None = None


class Family(ABC):
    """One way to build equilibria of B-thm3. Subclasses are final and stateless."""

    name: ClassVar[str]
    meaning: ClassVar[str]
    mask: ClassVar[str]
    stability: ClassVar[str]
    """What the family's Jacobian is like, in words."""

    @abstractmethod
    def limit(self, count: int, width: int) -> int:
        """The largest rank that this family reaches in float64 for that many tokens of that width."""

    def strict(self, count: int, width: int, rank: int) -> bool:
        """Whether that equilibrium is strictly stable (spectral radius below one)."""
        return False

    @abstractmethod
    def build(self, count: int, width: int, rank: int, *, shared: bool) -> Construction:
        """The equilibrium; with `shared`, all ranks of one count and width are fixed under one layer."""

    def shares(self, count: int, width: int) -> bool:
        """Whether one layer has equilibria of every rank up to min(count, width) in this family."""
        return self.limit(count, width) == min(count, width)

    def __call__(self, count: int, width: int, rank: int, *, shared: bool = False) -> Construction:
        """Build, after checking the request."""
        check_request(count, width, rank)
        most = self.limit(count, width)
        require(
            rank <= most,
            required=f"a rank of at most {most} for family {self.name} at {count} tokens of width {width}",
            got=rank,
            remedy="ask for a lower rank, or for family star, which has every rank",
        )
        return self.build(count, width, rank, shared=shared)


def check_request(count: int, width: int, rank: int) -> None:
    """Refuse what no family can build."""
    require_count("the number of tokens", count)
    require_count("the width", width)
    require_count("the rank", rank)
    require(
        rank <= min(count, width),
        required=f"a rank of at most {min(count, width)}, the lesser of {count} tokens and width {width}",
        got=rank,
        remedy="ask for a lower rank, more tokens or more width",
    )


SHRINK = 0.7


def settled(neighbours: Float[Tensor, d], value: Float[Tensor, "d d"], spectrum: float) -> Float[Tensor, d]:
    """The unit vector x = s W (g - W)^-1 for the largest g > spectrum, the largest eigenvalue of W."""
    pushed = neighbours @ value
    eye = torch.eye(value.shape[0], dtype=value.dtype)

    def answer(gap: float) -> Tensor:
        return torch.linalg.solve(((spectrum + gap) * eye - value).mT, pushed)

    gap = largest_gap(lambda gap: float(torch.linalg.vector_norm(answer(gap))), spectrum)
    x = answer(gap)
    return x / torch.linalg.vector_norm(x)


def largest_gap(length: Callable[[float], float], scale: float) -> float:
    """The largest gap at which the length is one, to the last digit: walk down, then halve."""
    high = scale
    while length(high) > 1:
        high *= 2
    low = high * SHRINK
    while length(low) <= 1:
        high, low = low, low * SHRINK
        if low < 1e-12 * scale:
            raise RequestError(
                required="neighbours that reach the leading direction of the value matrix",
                got="a token whose length stays below one for every growth factor",
                remedy="give the earlier tokens a part along the leading eigenvector",
            )
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if length(middle) > 1:
            low = middle
        else:
            high = middle
    return high


def largest_gap_decimal(squared_length: Callable[[Decimal], Decimal]) -> Decimal:
    """The same in the digits of the current decimal context: bisection, then Newton's secant to the last digit."""
    high = Decimal(1)
    while squared_length(high) > 1:
        high *= 2
    low = high * Decimal("0.7")
    while squared_length(low) <= 1:
        high, low = low, low * Decimal("0.7")
    for _ in range(40):
        middle = (low + high) / 2
        if squared_length(middle) > 1:
            low = middle
        else:
            high = middle
    f_low, f_high = squared_length(low) - 1, squared_length(high) - 1
    for _ in range(20):
        if f_high == f_low or low == high:
            break
        low, f_low, high = high, f_high, high - f_high * (high - low) / (f_high - f_low)
        f_high = squared_length(high) - 1
    return high
