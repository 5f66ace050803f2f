"""Norms: a map of each token on its own, with an optional gain and bias; where it stands in a residual block."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Literal, final, get_args

from torch import Tensor

from rankfall.catalogue import NORMS
from rankfall.registry import made
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class Scaling:
    """x -> length * x / sqrt(|x|^2 + epsilon), after centring where the norm centres."""

    length: float
    epsilon: float = 0.0


@dataclass(frozen=True)
class Norm(ABC):
    """Normalises tokens. A token that is zero (after centring, where the norm centres) maps to zero, never to NaN.

    What is declared here is all that the theorems, simulations, equilibria and training know about a norm.
    """

    name: ClassVar[str]
    meaning: ClassVar[str]
    centres: ClassVar[bool] = False
    """Whether the mean coordinate is taken off first."""
    identity: ClassVar[bool] = False
    """Whether tokens stay as they are."""

    @abstractmethod
    def normalise(self, tokens: Tokens) -> Tokens:
        """The norm itself, without gain or bias."""

    @abstractmethod
    def reference(self, row: Sequence[Any]) -> list[Any]:
        """The same of one token, a list of numbers of any precision, written as plainly as possible for the tests."""

    def scaling(self, width: int) -> Scaling | None:
        """The norm as a scaling of each token; None for another map.

        Scalings are simulated exactly far below machine epsilon, other norms down to the rounding of float64.
        """
        return None

    def gains(self, width: int) -> Mapping[str, int]:
        """What training learns with it: the sizes of its `gain`, which multiplies, and its `bias`, which adds."""
        return {"gain": width}

    @classmethod
    def examples(cls) -> tuple[Norm, ...]:
        """What every test of norms runs on: the default parameters, unless the norm gives its own."""
        return (cls(),)

    @final
    def length(self, width: int) -> float | None:
        """The length that it gives to every token but zero; None where lengths still differ."""
        scaling = self.scaling(width)
        return scaling.length if scaling is not None and scaling.epsilon == 0 else None

    @final
    def exact(self, width: int) -> bool:
        """Whether simulations carry it out far below machine epsilon."""
        return self.identity or self.scaling(width) is not None

    def __call__(self, tokens: Tokens, gain: Tensor | None = None, bias: Tensor | None = None) -> Tokens:
        """Normalise, then scale and shift each coordinate; `gain` may also be one number for all."""
        out = self.normalise(tokens)
        if gain is not None:
            out = out * gain
        return out if bias is None else out + bias

    def __str__(self) -> str:
        """The argument that `parse_norm` reads back: the name, and the parameters unless all are at their default."""
        given = [(getattr(self, one.name), one.default) for one in fields(self)]
        changed = any(value != default for value, default in given)
        return ":".join([self.name, *(f"{value}" for value, _ in given if changed)])


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
    identity: ClassVar[bool] = True

    def normalise(self, tokens: Tokens) -> Tokens:
        return tokens

    def reference(self, row: Sequence[Any]) -> list[Any]:
        return list(row)

    def gains(self, width: int) -> Mapping[str, int]:
        return {}


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


NO_NORM, UNIT_NORM = NoNorm(), UnitNorm()


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
