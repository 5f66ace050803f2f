"""One layer, the ordinary way: tokens in, tokens out, in whatever precision they have."""

from __future__ import annotations

import torch
from torch import Tensor

from rankfall.attention import Heads, attention
from rankfall.attention.masks import Mask
from rankfall.attention.norms import place
from rankfall.dynamics.mixing import Group
from rankfall.dynamics.rule import PURE_ATTENTION, Rule
from rankfall.dynamics.split_attention import take_heads
from rankfall.shapes import Tokens


def step(tokens: Tokens, heads: Heads, mask: Mask | Tensor | None = None, rule: Rule = PURE_ATTENTION) -> Tokens:
    """X' = norm(residual X + A X W_V) for post, residual X + A norm(X) W_V for pre; (..., n, d) to (..., n, d).

    The weights may carry batch axes of their own, which broadcast against those of the tokens. Once tokens agree
    to machine precision this shows rounding noise; `split_step` does not.
    """
    return place(
        rule.norm,
        lambda x: attention(heads, x, mask=mask, validate=False),
        tokens,
        rule.placement,
        rule.residual,
    )


def grouped_step(tokens: Tokens, heads: Heads, groups: list[Group], rule: Rule = PURE_ATTENTION) -> Tokens:
    """The same for a (b, n, d) batch whose samples attend under different masks."""
    out = torch.empty_like(tokens)
    for group in groups:
        if group.index is None:
            return step(tokens, heads, group.mixer.pattern, rule)
        out[group.index] = step(tokens[group.index], take_heads(heads, group.index), group.mixer.pattern, rule)
    return out
