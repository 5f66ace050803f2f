"""RMSNorm."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from rankfall.norms.base import Norm, Scaling, divide_by_root
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class RMSNorm(Norm):
    """x / sqrt(mean x^2 + epsilon): unit norm times sqrt(d)."""

    name: ClassVar[str] = "rms"
    meaning: ClassVar[str] = "each token scaled to root mean square one"
    epsilon: float = 0.0

    def normalise(self, tokens: Tokens) -> Tokens:
        return divide_by_root(tokens, tokens.square().mean(dim=-1, keepdim=True) + self.epsilon)

    def reference(self, row: Sequence[Any]) -> list[Any]:
        mean_square = sum(x * x for x in row) / len(row)
        return [x / (mean_square + self.epsilon) ** 0.5 for x in row]

    def scaling(self, width: int) -> Scaling:
        return Scaling(math.sqrt(width), self.epsilon * width)

    @classmethod
    def examples(cls) -> tuple[RMSNorm, ...]:
        return cls(), cls(0.1)
