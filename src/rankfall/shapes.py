"""Axis names used in every annotation, and the array aliases built from them.

Legend
    b   batch of independent samples        n   queries
    d   width of a token                    m   keys
    h   query heads                         g   key/value heads (g divides h)
    r   query/key rank of one head          v   value rank of one head
    o   width of the output                 s   singular values, min(n, d) of them

A leading `...` stands for any batch axes. Axes keep this order everywhere: batch, head, token, feature.
"""

from __future__ import annotations

from typing import TypeAlias

from jaxtyping import Bool, Float
from torch import Tensor

Tokens: TypeAlias = Float[Tensor, "... n d"]
"""Token representations, one per row."""

Scores: TypeAlias = Float[Tensor, "... n m"]
"""Attention scores or weights: row i belongs to query i."""

Allowed: TypeAlias = Bool[Tensor, "... n m"]
"""A mask as a matrix: entry (i, j) says that token i may attend to token j, an edge j -> i of the graph."""
