"""What a norm is: a map of each token on its own, with an optional gain and bias per coordinate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from rankfall.shapes import Tokens


@dataclass(frozen=True)
class Norm(ABC):
    """Normalises tokens. A token that is zero (after centring, where the norm centres) maps to zero, never to NaN."""

    name: ClassVar[str]
    meaning: ClassVar[str]

    @abstractmethod
    def normalise(self, tokens: Tokens) -> Tokens:
        """The norm itself, without gain or bias."""

    def __call__(self, tokens: Tokens, gain: Tensor | None = None, bias: Tensor | None = None) -> Tokens:
        """Normalise, then scale and shift each coordinate; `gain` may also be one number for all."""
        out = self.normalise(tokens)
        if gain is not None:
            out = out * gain
        return out if bias is None else out + bias


def divide_by_root(tokens: Tokens, squared_length: Tensor) -> Tokens:
    """Divide each token by the root of a number; where that is zero the token is zero too, and stays so.

    The zero is replaced before the root is taken, so that its gradient is finite.
    """
    return tokens / squared_length.where(squared_length > 0, squared_length.new_ones(())).sqrt()
