"""LayerNorm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from rankfall.norms.base import Norm, Scaling, divide_by_root
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class LayerNorm(Norm):
    """(x - mean x) / sqrt(var x + epsilon), mean and variance over the coordinates of one token."""

    name: ClassVar[str] = "layer"
    meaning: ClassVar[str] = "each token centred over its coordinates and scaled to variance one"
    centres: ClassVar[bool] = True
    epsilon: float = 0.0

    def normalise(self, tokens: Tokens) -> Tokens:
        centred = tokens - tokens.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        return divide_by_root(centred, variance + self.epsilon)

    def reference(self, row: Sequence[Any]) -> list[Any]:
        mean = sum(row) / len(row)
        variance = sum((x - mean) ** 2 for x in row) / len(row)
        return [(x - mean) / (variance + self.epsilon) ** 0.5 for x in row]

    def scaling(self, width: int) -> Scaling:
        return Scaling(math.sqrt(width), self.epsilon * width)

    def gains(self, width: int) -> Mapping[str, int]:
        return {"gain": width, "bias": width}

    @classmethod
    def examples(cls) -> tuple[LayerNorm, ...]:
        return cls(), cls(0.1)
