"""The whole model, feed-forward layers and all, under another mask than its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from rankfall.attention.masks import Mask
from rankfall.audit.ablation.ablate import measured, single_texts
from rankfall.audit.ablation.step import changed
from rankfall.audit.ablation.variants import FULL
from rankfall.audit.depth.capture import Place, capture
from rankfall.audit.interface.route import routed


def whole_under(
    model: Any,
    inputs: Mapping[str, Any],
    masks: Sequence[Mask],
    progress: Callable[[str, float], None] = lambda what, share: None,
) -> list[dict[str, Any]]:
    """Rows as `ablate` gives them for the full model, one run per text and mask, in the model's own precision.

    Layer 0 is what enters the first block; the last layer is before the final norm, where the model has one.
    """
    body = getattr(model, "base_model", model)
    texts = list(single_texts(inputs))
    rows = []
    for number, text in enumerate(texts):
        for turn, mask in enumerate(masks):
            share = (number + turn / len(masks)) / len(texts)
            progress(f"full model under {mask}, text {number + 1} of {len(texts)}", share)
            with routed(body, changed(1.0, mask)):
                found = list(_by_layer(body, text))
            where = {"variant": FULL, "scaling": "raw", "temperature": 1.0, "mask": str(mask), "text": number}
            rows += [{**where, "layer": layer, **measured(tokens)} for layer, tokens in found]
    return rows


def _by_layer(body: Any, text: Mapping[str, Any]) -> Iterator[tuple[int, Tensor]]:
    streams: dict[int, Tensor] = {}

    def on_tokens(place: Place, tokens: Tensor) -> None:
        # What the last block gave comes before what the final norm makes of it.
        if place.part in ("boundary", "before_final_norm"):
            streams.setdefault(place.layer, tokens)

    capture(body, text, on_tokens)
    yield from streams.items()
