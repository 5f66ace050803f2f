"""Which tokens of a batch are real: read from the padding mask that a model was called with."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

# Names of (b, n) masks, and whether they mark real tokens or padding.
MARKS_REAL = {"attention_mask": True, "src_key_padding_mask": False, "key_padding_mask": False}


def real_tokens(model: nn.Module, given: Sequence[Any], named: Mapping[str, Any]) -> Tensor | None:
    """(b, n) booleans; None where the model got no such mask, and every token counts."""
    for name, value in {**_bound(model, given), **named}.items():
        if name in MARKS_REAL and isinstance(value, Tensor) and value.ndim == 2:
            if MARKS_REAL[name]:
                return value != 0
            # A mask of padding is true there, or minus infinity.
            return value == 0
    return None


def _bound(model: nn.Module, given: Sequence[Any]) -> Mapping[str, Any]:
    try:
        return inspect.signature(model.forward).bind_partial(*given).arguments
    except (TypeError, ValueError):
        return {}
