"""What an audit says about keys and values: how small a latent could hold them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from rankfall.models.heads.key_values import KeyValueRecord, by_number
from rankfall.models.masks import ObservedMask
from rankfall.models.verdict.reasons import Reason


def decodes(masks: Sequence[ObservedMask]) -> bool:
    """Whether some attention of the run saw no later token, so that keys and values can be cached."""
    return any((one.name or "").startswith("causal") for one in masks)


def key_value_reason(records: Sequence[KeyValueRecord], *, caches: bool = False) -> Reason | None:
    """Into which latent the keys and values of each layer would fit: by weights, on tokens, on other passages.
    Only of a model that `caches` them, which encoders do not, is that said."""
    if not records:
        return None
    first = records[0]
    cached = statistics.median(one.cached for one in records)
    now = (
        f"a latent of {first.kv_latent} and {first.rope_dims} rotary dimensions beside it"
        if first.kv_latent
        else f"{first.kv_heads} key/value heads of {first.key_dim} + {first.value_dim}"
    )
    size = f"caches {cached:.0f} numbers" if caches else f"has keys and values of {cached:.0f} numbers"
    text = (
        f"a layer {size} a token ({now}); keys and values together, each scaled to the same"
        f" energy, have effective rank {statistics.median(one.effective_rank for one in records):.0f} by weights, and"
        f" a latent that keeps 99% of that energy needs {_spread(by_number(records, 'weights_99'))} numbers in the"
        " median layer"
    )
    on_tokens, others = by_number(records, "tokens_99"), by_number(records, "others_99")
    tokens = max(one.tokens_read for one in records)
    if on_tokens:
        text += (
            f"; about the mean of the {tokens} tokens read it needs {_spread(on_tokens)} for 99%,"
            f" {_spread(by_number(records, 'tokens_90'))} for 90%"
        )
        text += _on_others(records, others)
    nearby = [(one.previous, one.chance) for one in records if one.previous is not None and one.chance is not None]
    if nearby:
        shared, chance = (statistics.median(column) for column in zip(*nearby, strict=True))
        text += (
            f"; the latent of the layer before would keep {shared:.0%} of what a layer's own does"
            f" (chance {chance:.0%})"
        )
    numbers = {
        "cached": cached,
        "kv_latent": first.kv_latent,
        "rope_dims": first.rope_dims,
        "tokens_read": tokens,
        "effective_rank": statistics.median(one.effective_rank for one in records),
        **{
            name: statistics.median(found) if (found := by_number(records, name)) else None
            for name in ("weights_90", "weights_99", "weights_999", "tokens_90", "tokens_99", "tokens_999")
        },
        **{
            name: statistics.median(found) if len(found := by_number(records, name)) == len(records) else None
            for name in ("others_90", "others_99", "others_999")
        },
    }
    return Reason("keys and values", text, numbers)


def _spread(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    middle = f"{statistics.median(values):.0f}"
    return middle if low == high else f"{middle} ({low} to {high})"


def _on_others(records: Sequence[KeyValueRecord], others: Sequence[int]) -> str:
    most = [one.others_most for one in records if one.others_most is not None]
    if not most:
        return ", by the passage that it was chosen on"
    nine = by_number(records, "others_90")
    if len(others) == len(records):
        return f"; chosen on half of the passages, {_spread(others)} for 99% of the other half"
    told = f", {_spread(nine)} for 90%" if len(nine) == len(records) else ""
    return (
        f"; chosen on half of the passages it keeps {statistics.median(most):.0%} of the other half at most{told}:"
        " read more text to tell"
    )
