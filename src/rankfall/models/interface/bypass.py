"""What can be seen of modules that bypass the attention interface: their softmax, or torch's fused attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

SOFTMAXES = frozenset({functional.softmax, torch.softmax, Tensor.softmax, torch.special.softmax})
FUSED = functional.scaled_dot_product_attention
FUSED_ARGUMENTS = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale")

Seen = Callable[..., None]
"""Called with the parts of a `Call` that were seen, by name."""


class BypassWatch(TorchFunctionMode):
    """Runs every torch function as it is and reports the attention among them while `watching()` says so."""

    def __init__(self, watching: Callable[[], bool], seen: Seen) -> None:
        super().__init__()
        self._watching = watching
        self._seen = seen

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        options = dict(kwargs or {})
        result = func(*args, **options)
        if self._watching():
            if func is FUSED:
                given = dict(zip(FUSED_ARGUMENTS, args, strict=False)) | options
                self._seen(
                    source="sdpa",
                    query=given.pop("query"),
                    key=given.pop("key"),
                    value=given.pop("value"),
                    mask=given.pop("attn_mask", None),
                    scaling=given.pop("scale", None),
                    output=result,
                    options=given,
                )
            elif func in SOFTMAXES and _over_keys(result, args, options):
                logits = args[0] if args else options["input"]
                self._seen(source="softmax", logits=logits, weights=result)
        return result


def _over_keys(weights: Tensor, args: tuple[Any, ...], options: Mapping[str, Any]) -> bool:
    """Attention normalises the last of at least three axes; a softmax over anything else is not attention."""
    axis = options.get("dim", args[1] if len(args) > 1 else None)
    return weights.ndim >= 3 and axis in (-1, weights.ndim - 1)
