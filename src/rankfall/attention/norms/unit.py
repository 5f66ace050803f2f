"""Each token to length one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from rankfall.attention.norms.base import Norm, divide_by_root
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class UnitNorm(Norm):
    """x / ||x||: LayerNorm as both papers simplify it."""

    name: ClassVar[str] = "unit"
    meaning: ClassVar[str] = "each token scaled to length one"

    def normalise(self, tokens: Tokens) -> Tokens:
        return divide_by_root(tokens, tokens.square().sum(dim=-1, keepdim=True))
