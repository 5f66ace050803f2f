"""What a model's attention does, in a few sentences: sinks, heads that do nothing, entropy, logits."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Sequence

from rankfall.models.attention.heads import HeadAttention, layer_means
from rankfall.models.depth.rows import layer_title
from rankfall.models.recording.layers import layers_told, place_told
from rankfall.models.thresholds import THRESHOLDS
from rankfall.models.verdict.reasons import Reason

WORDS = {
    "first token": f"{THRESHOLDS.idle_mass:.0%} or more of the weight rests on the first token",
    "learned sink": f"{THRESHOLDS.idle_mass:.0%} or more of the weight goes to a learned sink",
    "itself": f"{THRESHOLDS.idle_mass:.0%} or more of the weight stays on the token itself",
    "one token": f"{THRESHOLDS.idle_mass:.0%} or more of the weight rests on one token",
    "small output": f"the output is below {THRESHOLDS.idle_output_share:g} of a fair share of the layer's",
}
NO_BOUND = 0.005
"""Share of a head's entropy below which the least that its logits allow is no bound worth a number; as near to all of
it the bound says that the logits cannot change it."""


def attention_reasons(heads: Sequence[HeadAttention]) -> list[Reason]:
    """Of self-attention, or of cross-attention where there is no other; nothing where there was too little text."""
    mine = [one for one in heads if one.kind == "self"] or list(heads)
    if max((one.tokens for one in mine), default=0) < THRESHOLDS.fewest_tokens:
        return []
    named = "heads" if len(mine) == len(heads) else "heads of self-attention"
    return [_sinks(mine, named), _idle(mine, named), _entropy(mine, named), *_logits(mine)]


def _layers(heads: Sequence[HeadAttention], value: Callable[[HeadAttention], float]) -> dict[tuple[int, str], float]:
    """The mean over the heads of each layer."""
    by_layer: dict[tuple[int, str], list[float]] = {}
    for one in heads:
        by_layer.setdefault((one.layer, one.module), []).append(value(one))
    return {key: statistics.fmean(values) for key, values in by_layer.items()}


def _sinks(heads: Sequence[HeadAttention], named: str) -> Reason:
    sinks = [one for one in heads if one.is_sink]
    by_layer = _layers(heads, lambda one: one.resting_mass)
    most = max(by_layer, key=lambda key: by_layer[key])
    learned = statistics.fmean(one.values["sink_mass"] for one in heads)
    # A sink of the weights is none of the tokens: those that are long are told of by their length.
    place = "on the first token"
    if learned > 0:
        place = f"on the first token or on learned sinks, which get {learned:.0%} of all weight"
    share = f"more than {THRESHOLDS.attention_sink_mass:.0%} of their weight"
    text = f"{len(sinks)} of {len(heads)} {named} put {share} {place}{_in_layers(sinks, heads)}"
    text += f"; most at {layer_title(*most)}, {by_layer[most]:.0%} in the mean of its heads"
    elsewhere = [one for one in heads if one.busiest[0] != 0 and _held_elsewhere(one)]
    if elsewhere:
        strongest = max(elsewhere, key=lambda one: one.values["busiest_mass"])
        named = f" ({strongest.busiest[1]!r})" if strongest.busiest[1] else ""
        text += (
            f"; {len(elsewhere)} head{' puts' if len(elsewhere) == 1 else 's put'} as much on another single token,"
            f" the most head {strongest.head} of"
            f" {place_told(strongest, heads)}: {strongest.values['busiest_mass']:.0%} on token"
            f" {strongest.busiest[0]}{named}"
        )
    numbers = {
        "heads": len(heads),
        "sink_heads": len(sinks),
        "other_sink_heads": len(elsewhere),
        "learned_sink_mass": learned,
        "first_token_mass_by_layer": layer_means(heads, "first_token_mass"),
    }
    return Reason("attention sinks", text, numbers)


def _in_layers(some: Sequence[HeadAttention], heads: Sequence[HeadAttention]) -> str:
    return f" ({layers_told(some, heads)})" if some else ""


def _held_elsewhere(head: HeadAttention) -> bool:
    return head.values["busiest_mass"] > THRESHOLDS.attention_sink_mass


def _idle(heads: Sequence[HeadAttention], named: str) -> Reason:
    why = Counter(one.does_nothing for one in heads if one.does_nothing is not None)
    idle = sum(why.values())
    if not idle:
        text = (
            f"none of {len(heads)} {named}: none has {THRESHOLDS.idle_mass:.0%} of its weight on one token, on the"
            f" token itself or in a sink, or writes less than {THRESHOLDS.idle_output_share:g} of a fair share of its"
            " layer's output"
        )
    else:
        reasons = ", ".join(f"{count} because {WORDS[reason]}" for reason, count in why.most_common())
        (where, count), *_ = Counter(
            (one.layer, one.module) for one in heads if one.does_nothing is not None
        ).most_common(1)
        inside = [one for one in heads if (one.layer, one.module) == where]
        text = f"{idle} of {len(heads)} {named} do nothing: {reasons}"
        if len(why) + idle > 2:
            text += f"; most in {place_told(inside[0], heads)}, {count} of {len(inside)}"
    return Reason("heads that do nothing", text, {"heads": len(heads), "idle": idle, "why": dict(why)})


def _entropy(heads: Sequence[HeadAttention], named: str) -> Reason:
    by_layer = _layers(heads, lambda one: one.values["relative_entropy"])
    low, high = (pick(by_layer, key=lambda key: by_layer[key]) for pick in (min, max))
    usual = statistics.median(one.values["relative_entropy"] for one in heads)
    few = [one for one in heads if one.values["relative_entropy"] < THRESHOLDS.collapsed_entropy]
    known = [one.values["entropy_floor"] / one.values["entropy"] for one in heads if one.values.get("entropy_floor")]
    bound = _least_entropy(statistics.median(known)) if known else ""
    least, most = f"{by_layer[low]:.0%}", f"{by_layer[high]:.0%}"
    spread = f"layers from {least} at {layer_title(*low)} to {most} at {layer_title(*high)}"
    text = (
        f"the median head has {usual:.0%} of the entropy that its mask allows;"
        f" {spread if least != most else f'every layer has {most}'}; entropy is collapsed (below"
        f" {THRESHOLDS.collapsed_entropy:.0%}) in {len(few) or 'none'} of {len(heads)} {named}"
        f"{_in_layers(few, heads)}{bound}"
    )
    numbers = {
        "median_relative_entropy": usual,
        "collapsed_heads": len(few),
        "relative_entropy_by_layer": layer_means(heads, "relative_entropy"),
    }
    return Reason("attention entropy", text, numbers)


def _least_entropy(share: float) -> str:
    if share < NO_BOUND:
        return "; logits as large as its own would allow the median head to attend to a single token"
    if share > 1 - NO_BOUND:
        return "; logits as small as its own cannot make the median head's entropy lower than it is"
    return (
        f"; logits as large as its own could let the median head's entropy fall to {share:.0%} of what it is, and no"
        " lower"
    )


def _logits(heads: Sequence[HeadAttention]) -> list[Reason]:
    known = [one for one in heads if "logit_max" in one.values]
    if not known:
        return []
    top = max(known, key=lambda one: one.values["logit_max"])
    usual = statistics.median(one.values["logit_q99"] - one.values["logit_q50"] for one in known)
    text = (
        f"the largest logit is {top.values['logit_max']:.3g}, in head {top.head} of"
        f" {layer_title(top.layer, top.module)}; in the median head 1% of the pairs are more than {usual:.2g} above"
        " its median logit"
    )
    numbers = {"logit_max": top.values["logit_max"], "layer": top.layer, "head": top.head, "module": top.module}
    return [Reason("attention logits", text, numbers)]
