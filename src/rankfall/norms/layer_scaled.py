"""LayerNorm that becomes weaker with depth."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, final

from rankfall.norms.base import Norm, Scaling
from rankfall.norms.layer import LayerNorm
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class DepthScaledLayerNorm(Norm):
    """LayerNorm(x) / sqrt(layer), the first layer being 1 (Sun et al. 2025): later branches add less."""

    name: ClassVar[str] = "layer-scaled"
    meaning: ClassVar[str] = "LayerNorm divided by the root of the layer's number, which starts at DEPTH"
    centres: ClassVar[bool] = True
    by_depth: ClassVar[bool] = True
    epsilon: float = 0.0
    depth: int = 1

    def normalise(self, tokens: Tokens) -> Tokens:
        return LayerNorm(self.epsilon).normalise(tokens) / math.sqrt(self.depth)

    def reference(self, row: Sequence[Any]) -> list[Any]:
        # The root in the precision of the numbers.
        return [x / (0 * x + self.depth) ** 0.5 for x in LayerNorm(self.epsilon).reference(row)]

    def at(self, layer: int) -> Norm:
        return replace(self, depth=self.depth + layer - 1)

    def scaling(self, width: int) -> Scaling:
        return Scaling(math.sqrt(width / self.depth), self.epsilon * width)

    def gains(self, width: int) -> Mapping[str, int]:
        return {"gain": width, "bias": width}

    @classmethod
    def examples(cls) -> tuple[DepthScaledLayerNorm, ...]:
        return cls(), cls(0.1, 3)
