"""No norm at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from rankfall.attention.norms.base import Norm
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class NoNorm(Norm):
    """Tokens as they are: pure attention."""

    name: ClassVar[str] = "none"
    meaning: ClassVar[str] = "tokens as they are"

    def normalise(self, tokens: Tokens) -> Tokens:
        return tokens
