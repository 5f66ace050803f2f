"""The ablated blocks that are compared (figure 2 of paper B)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, final, get_args

Scaling = Literal["raw", "matched"]
"""raw: tokens as they come. matched: before each layer all tokens are multiplied by one number, so that their
Frobenius norm is what the layer got in the real model; without it a missing norm lets them grow until softmax
saturates."""

SCALINGS: tuple[Scaling, ...] = get_args(Scaling)


@final
@dataclass(frozen=True)
class Variant:
    """Attention always runs; feed-forward layers never do (they do in the full model, which is traced)."""

    name: str
    norm: bool
    residual: bool


ATTENTION = Variant("attention", norm=False, residual=False)
WITH_NORM = Variant("attention + norm", norm=True, residual=False)
WITH_RESIDUAL = Variant("attention + residual", norm=False, residual=True)
WITH_BOTH = Variant("attention + norm + residual", norm=True, residual=True)
FULL = "full model"

ALL_VARIANTS: tuple[Variant, ...] = (ATTENTION, WITH_NORM, WITH_RESIDUAL, WITH_BOTH)
