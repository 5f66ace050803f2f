"""Dynamic tanh, which takes the place of a norm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from rankfall.errors import require_number
from rankfall.norms.base import Norm
from rankfall.shapes import Tokens


@final
@dataclass(frozen=True)
class DynamicTanh(Norm):
    """tanh(alpha x), coordinate by coordinate (Zhu et al. 2025): bounds what is large, leaves what is small alone.

    Alpha is given and stays; gain and bias are learned.
    """

    name: ClassVar[str] = "dyt"
    meaning: ClassVar[str] = "tanh(ALPHA x) of each coordinate"
    alpha: float = 0.5

    def __post_init__(self) -> None:
        require_number("alpha", self.alpha, above=0)

    def normalise(self, tokens: Tokens) -> Tokens:
        return torch.tanh(self.alpha * tokens)

    def reference(self, row: Sequence[Any]) -> list[Any]:
        # Numbers of higher precision bring their own tanh.
        return [getattr(x, "context", math).tanh(self.alpha * x) for x in row]

    def secants(self, start: Tensor, step: Tensor) -> Tensor:
        """alpha sinh(b) / (b cosh(a + b) cosh(a)), a = alpha start, b = alpha step, in bounded factors."""
        begin, end, moved = (self.alpha * one.abs() for one in (start, start + step, step))
        sinh = torch.where(moved > 0, -torch.expm1(-2 * moved) / (2 * moved.where(moved > 0, 1.0)), 1.0)
        inverse_cosh = 4 / ((1 + (-2 * begin).exp()) * (1 + (-2 * end).exp()))
        return self.alpha * sinh * inverse_cosh * (moved - begin - end).clamp_max(0.0).exp()

    def gains(self, width: int) -> Mapping[str, int]:
        return {"gain": width, "bias": width}

    @classmethod
    def examples(cls) -> tuple[DynamicTanh, ...]:
        return cls(), cls(2.0)
