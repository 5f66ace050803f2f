"""Tokens as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

from rankfall.norms.base import Norm
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class NoNorm(Norm):
    """Tokens as they are: pure attention."""

    name: ClassVar[str] = "none"
    meaning: ClassVar[str] = "tokens as they are"
    identity: ClassVar[bool] = True

    def normalise(self, tokens: Tokens) -> Tokens:
        return tokens

    def reference(self, row: Sequence[Any]) -> list[Any]:
        return list(row)

    def gains(self, width: int) -> Mapping[str, int]:
        return {}
