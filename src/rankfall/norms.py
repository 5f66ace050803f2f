"""Norms: a map of each token on its own, with an optional gain and bias; where it stands in a residual block."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, final, get_args

from torch import Tensor

from rankfall.catalogue import NORMS
from rankfall.registry import made
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


@final
@dataclass(frozen=True)
class NoNorm(Norm):
    """Tokens as they are: pure attention."""

    name: ClassVar[str] = "none"
    meaning: ClassVar[str] = "tokens as they are"

    def normalise(self, tokens: Tokens) -> Tokens:
        return tokens


@final
@dataclass(frozen=True)
class UnitNorm(Norm):
    """x / ||x||: LayerNorm as both papers simplify it."""

    name: ClassVar[str] = "unit"
    meaning: ClassVar[str] = "each token scaled to length one"

    def normalise(self, tokens: Tokens) -> Tokens:
        return divide_by_root(tokens, tokens.square().sum(dim=-1, keepdim=True))


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


@final
@dataclass(frozen=True)
class RMSNorm(Norm):
    """x / sqrt(mean x^2 + epsilon): unit norm times sqrt(d)."""

    name: ClassVar[str] = "rms"
    meaning: ClassVar[str] = "each token scaled to root mean square one"
    epsilon: float = 0.0

    def normalise(self, tokens: Tokens) -> Tokens:
        return divide_by_root(tokens, tokens.square().mean(dim=-1, keepdim=True) + self.epsilon)


def parse_norm(text: str) -> Norm:
    """The norm that an argument such as `unit` or `layer:1e-5` names."""
    return made(NORMS, text)


Placement = Literal["post", "pre"]
PLACEMENTS: tuple[Placement, ...] = get_args(Placement)


def place(
    norm: Callable[[Tokens], Tokens] | Norm,
    layer: Callable[[Tokens], Tokens],
    tokens: Tokens,
    placement: Placement = "post",
    residual: float = 1.0,
) -> Tokens:
    """One block: post is norm(residual x + layer(x)), pre is residual x + layer(norm(x))."""
    if placement == "post":
        return norm(residual * tokens + layer(tokens))
    return residual * tokens + layer(norm(tokens))
