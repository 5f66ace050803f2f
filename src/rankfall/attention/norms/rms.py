"""Root-mean-square normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from rankfall.attention.norms.base import Norm, divide_by_root
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
