"""What an audit says about keys and values: how small a latent could hold them."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from rankfall.models.attention.masks import CROSS, ObservedMask
from rankfall.models.heads.key_values import KeyValueRecord, by_number
from rankfall.models.recording.layers import list_of, module_noun
from rankfall.models.verdict.reasons import Reason


def key_value_reason(records: Sequence[KeyValueRecord], masks: Sequence[ObservedMask] = ()) -> Reason | None:
    """Into which latent the keys and values of each layer would fit: by weights, on tokens, on other passages.
    Only of stacks whose `masks` hide later tokens is it said that they cache them: encoders do not."""
    if not records:
        return None
    decoding = {list_of(one.module) for one in masks if (one.name or "").startswith("causal")}
    crossing = {one.module for one in masks if one.name == CROSS}
    decoders = [one for one in records if list_of(one.module) in decoding]
    own = [one for one in decoders if one.module not in crossing]
    first = _usual(own or records)
    noun = module_noun(records)
    text = (
        f"{_sizes_told(records, decoders, own)}; keys and values together, each scaled to the same"
        f" energy, have effective rank {statistics.median(one.effective_rank for one in records):.0f} by weights, and"
        f" a latent that keeps 99% of that energy needs {_spread(by_number(records, 'weights_99'))} numbers in the"
        f" median {noun}"
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
            f"; the latent of the {noun} before would keep {shared:.0%} of what a {noun.split()[-1]}'s own does"
            f" (chance {chance:.0%})"
        )
    numbers = {
        "cached": statistics.median(one.cached for one in own or records),
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


def _usual(records: Sequence[KeyValueRecord]) -> KeyValueRecord:
    """The first of those of the most common size."""
    sizes = [(one.kv_latent, one.rope_dims, one.kv_heads, one.key_dim, one.value_dim) for one in records]
    return records[sizes.index(statistics.mode(sizes))]


def _sizes_told(
    records: Sequence[KeyValueRecord], decoders: Sequence[KeyValueRecord], own: Sequence[KeyValueRecord]
) -> str:
    """What a layer caches of its `own` tokens and by cross-attention, and the size where nothing is cached; where
    only some of the stacks are `decoders`, by the name of the stack."""
    if not own:
        return f"a layer has keys and values of {_size(_usual(records))}"
    cross = [one for one in decoders if one not in own]
    others = [one for one in records if one not in decoders]
    said = f"a layer{_of(own) if others else ''} caches {_size(_usual(own))}"
    if cross:
        said += f" and, for its cross-attention, {_usual(cross).cached} for each token of the other stack"
    if others:
        said += f"; a layer{_of(others)} has keys and values of {_size(_usual(others))} and caches nothing"
    return said


def _of(records: Sequence[KeyValueRecord]) -> str:
    return f" of {' and '.join(dict.fromkeys(list_of(one.module) for one in records))}"


def _size(one: KeyValueRecord) -> str:
    now = (
        f"a latent of {one.kv_latent} and {one.rope_dims} rotary dimensions beside it"
        if one.kv_latent
        else f"{one.kv_heads} key/value head{'s' * (one.kv_heads != 1)} of {one.key_dim} + {one.value_dim}"
    )
    return f"{one.cached} numbers a token ({now})"


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
    lacking = [one.others_most for one in records if one.others_99 is None and one.others_most is not None]
    # What falls short of 99% must not be rounded up to it.
    short = math.floor(1000 * statistics.median(lacking or most)) / 1000
    where = "" if not others else f" in {len(records) - len(others)} of {len(records)} {module_noun(records)}s"
    return (
        f"; chosen on half of the passages it keeps {short:.1%} of the other half at most{where}{told}: read more"
        " text to tell"
    )
