"""Layer normalisation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from rankfall.attention.norms.base import Norm, divide_by_root
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class LayerNorm(Norm):
    """(x - mean x) / sqrt(var x + epsilon), mean and variance over the coordinates of one token."""

    name: ClassVar[str] = "layer"
    meaning: ClassVar[str] = "each token centred over its coordinates and scaled to variance one"
    epsilon: float = 0.0

    def normalise(self, tokens: Tokens) -> Tokens:
        centred = tokens - tokens.mean(dim=-1, keepdim=True)
        variance = centred.square().mean(dim=-1, keepdim=True)
        return divide_by_root(centred, variance + self.epsilon)
