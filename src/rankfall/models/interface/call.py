"""One attention call of a model, as its callback sees it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from torch import Tensor, nn

Source = Literal["interface", "sdpa", "softmax"]
"""How a call was seen: at the library's attention interface (everything), at torch's fused attention (all but the
weights), or at a softmax inside a module that bypasses both (weights and logits only)."""


@dataclass(frozen=True, eq=False)
class Call:
    """Tensors are the model's own, not copies: read them now or copy them; holding them costs memory.

    query (b, h, n, r)     key, value (b, g, m, r) with g dividing h, before groups are repeated
    mask                   added to the scores, or boolean; None means that every token sees every token
    weights (b, h, n, m)   what the model computed, where it computes them
    logits                 what went into a softmax (source `softmax` only)
    output                 what attention returned: (b, n, h, r) from the interface
    """

    index: int
    name: str
    module: nn.Module
    source: Source
    query: Tensor | None = None
    key: Tensor | None = None
    value: Tensor | None = None
    mask: Tensor | None = None
    scaling: float | None = None
    weights: Tensor | None = None
    logits: Tensor | None = None
    output: Tensor | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def missing(self) -> tuple[str, ...]:
        """Which of query, key, value and weights could not be seen."""
        parts = {"query": self.query, "key": self.key, "value": self.value, "weights": self.weights}
        return tuple(name for name, part in parts.items() if part is None)
