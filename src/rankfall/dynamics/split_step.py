"""One layer on split tokens: the same map as `step`, exact far below machine epsilon."""

from __future__ import annotations

from rankfall.attention import Heads
from rankfall.dynamics.mixing import Group
from rankfall.dynamics.rule import PURE_ATTENTION, Rule
from rankfall.dynamics.split import Split, add, merge
from rankfall.dynamics.split_attention import split_attention, take_heads
from rankfall.dynamics.split_norm import split_norm


def split_step(state: Split, heads: Heads, groups: list[Group], rule: Rule = PURE_ATTENTION) -> Split:
    """X' = norm(residual X + A X W_V), or residual X + A norm(X) W_V where the norm stands in front."""
    asked = split_norm(state, rule.norm) if rule.placement == "pre" else state
    mixed = _attend(asked, heads, groups)
    if rule.residual != 0:
        mixed = add(state, mixed, rule.residual)
    return split_norm(mixed, rule.norm) if rule.placement == "post" else mixed


def _attend(state: Split, heads: Heads, groups: list[Group]) -> Split:
    if len(groups) == 1:
        return split_attention(state, heads, groups[0].mixer)
    parts, places = [], []
    for group in groups:
        assert group.index is not None
        parts.append(split_attention(state.take(group.index), take_heads(heads, group.index), group.mixer))
        places.append(group.index)
    return merge(parts, places)
