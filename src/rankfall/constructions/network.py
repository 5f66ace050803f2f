"""A small attention-only network on a query stream: what every construction builds and how it is run.

A token is a row of slots. The context token of point i is [x_i | code_i | zeros], a query token [y | zeros]; each
layer lets the queries attend to the context (which does not change) and adds what comes back to the query stream. In
self-attention this is a mask that keeps queries from being asked.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from rankfall.attention import Heads, attention
from rankfall.attention.weights import Kind
from rankfall.errors import require


@dataclass(frozen=True)
class Layer:
    """The heads of one layer and how they choose."""

    heads: Heads
    kind: Kind


@dataclass(frozen=True)
class Network:
    """Layers, the positional codes (n, c) put behind the points, and the column where the answer's d numbers start.

    `dim` is d, `width` the number of all slots. Without `residual` (one layer only) the layer's output is the stream.
    """

    layers: tuple[Layer, ...]
    dim: int
    width: int
    codes: Float[Tensor, "n c"] | None = None
    answer_at: int = 0
    residual: bool = True

    @property
    def heads(self) -> int:
        """Heads of all layers together."""
        return sum(layer.heads.heads for layer in self.layers)

    @property
    def rank(self) -> int:
        """The largest query/key rank of any head."""
        return max(layer.heads.rank for layer in self.layers)

    def __call__(
        self, points: Float[Tensor, "... n d"], queries: Float[Tensor, "... m d"]
    ) -> Float[Tensor, "... m d"]:
        """The answers for these points and queries."""
        context, stream = self.context_tokens(points), self._pad(queries)
        for layer in self.layers:
            came_back = attention(layer.heads, stream, context, kind=layer.kind)
            stream = stream + came_back if self.residual else came_back
        return stream[..., self.answer_at : self.answer_at + self.dim]

    def context_tokens(self, points: Float[Tensor, "... n d"]) -> Float[Tensor, "... n w"]:
        """[x_i | code_i | zeros]."""
        require(
            points.shape[-1] == self.dim,
            required=f"points of dimension {self.dim}, as the construction was built for",
            got=f"shape {tuple(points.shape)}",
            remedy="build it for that dimension",
        )
        if self.codes is None:
            return self._pad(points)
        require(
            points.shape[-2] == self.codes.shape[0],
            required=f"{self.codes.shape[0]} points, one for each positional code",
            got=f"{points.shape[-2]}",
            remedy="build it for that number of points",
        )
        codes = self.codes.to(points).expand(*points.shape[:-2], *self.codes.shape)
        return self._pad(torch.cat([points, codes], dim=-1))

    def _pad(self, tokens: Tensor) -> Tensor:
        return torch.nn.functional.pad(tokens, (0, self.width - tokens.shape[-1]))


def embed(block: Float[Tensor, "... rows columns"], width: int, at: int) -> Float[Tensor, "... width columns"]:
    """The block as rows `at`, `at`+1, ... of a taller zero matrix: a map that reads (or writes) one slot only."""
    rows = block.shape[-2]
    return torch.nn.functional.pad(block, (0, 0, at, width - at - rows))
