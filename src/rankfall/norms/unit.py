"""Tokens of length one, as both papers simplify LayerNorm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from rankfall.norms.base import Norm, Scaling, divide_by_root
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class UnitNorm(Norm):
    """x / ||x||: LayerNorm as both papers simplify it."""

    name: ClassVar[str] = "unit"
    meaning: ClassVar[str] = "each token scaled to length one"

    def normalise(self, tokens: Tokens) -> Tokens:
        return divide_by_root(tokens, tokens.square().sum(dim=-1, keepdim=True))

    def reference(self, row: Sequence[Any]) -> list[Any]:
        length = sum(x * x for x in row) ** 0.5
        return [x / length for x in row]

    def scaling(self, width: int) -> Scaling:
        return Scaling(1.0)

    def gains(self, width: int) -> Mapping[str, int]:
        return {"gain": 1}
