"""What a norm is: a map of each token on its own, with an optional gain and bias, and what it declares of itself."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from rankfall.errors import require_count, require_number
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
    by_depth: ClassVar[bool] = False
    """Whether each layer has its own: `at` gives it."""

    def __post_init__(self) -> None:
        """Whole-number parameters count from one on, others are not negative; a norm that needs more checks them."""
        for one in fields(self):
            name, value = f"the {self.name} norm's {one.name}", getattr(self, one.name)
            if one.type in ("int", int):
                require_count(name, value)
            else:
                require_number(name, value, least=0)

    @abstractmethod
    def normalise(self, tokens: Tokens) -> Tokens:
        """The norm itself, without gain or bias."""

    @abstractmethod
    def reference(self, row: Sequence[Any]) -> list[Any]:
        """The same of one token, a list of numbers of any precision, written as plainly as possible for the tests."""

    def scaling(self, width: int) -> Scaling | None:
        """The norm as a scaling of each token; None for another map.

        Scalings are simulated exactly far below machine epsilon, and so are norms with `secants`; any other norm down
        to the rounding of float64.
        """
        return None

    def secants(self, start: Tensor, step: Tensor) -> Tensor | None:
        """(norm(start + step) - norm(start)) / step of each coordinate, its derivative where the step is zero.

        For norms that map every coordinate on its own, without cancellation for any step; None for other norms.
        """
        return None

    def at(self, layer: int) -> Norm:
        """The norm of that layer, the first of which is 1."""
        return self

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
        nothing = torch.zeros(width, dtype=torch.float64)
        return self.identity or self.scaling(width) is not None or self.secants(nothing, nothing) is not None

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
