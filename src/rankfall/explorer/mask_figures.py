"""The attention matrix of one layer, and the mask's graph."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfall.attention.masks import parse_mask
from rankfall.errors import RequestError
from rankfall.explorer.packing import packed_shares
from rankfall.explorer.theme import BLUE, VERMILION

HEIGHT = 400
# More tokens than this make a ball of wool of the graph.
GRAPH_TOKENS = 14


def draw_attention(attention: Tensor, mask: str, layer: int) -> dict[str, Any]:
    """Row i: how token i spreads its attention. What the mask forbids stays empty."""
    n = attention.shape[-1]
    top = max(float(attention.max()), 1e-12)
    return {
        "kind": "heat",
        "name": "attention",
        "title": f"Attention in layer {layer + 1}",
        "height": HEIGHT,
        "size": n,
        "top": top,
        "x": "attends to",
        "y": "token",
        "values": packed_shares(attention, parse_mask(mask).dense(n), top),
    }


def draw_graph(mask: str, tokens: int) -> dict[str, Any]:
    """Tokens on a circle, an arrow where information flows; roots, which reach everyone, stand out."""
    n = graph_tokens(mask, tokens)
    kind = parse_mask(mask)
    allowed, roots = kind.dense(n), set(kind.facts(n).roots)
    seen = (allowed & ~torch.eye(n, dtype=torch.bool)).nonzero().tolist()
    count = "" if n == tokens else f" at {n} tokens"
    return {
        "kind": "graph",
        "name": "graph",
        "title": f"The mask's graph{count}, roots in orange",
        "height": HEIGHT,
        # Who attends is where information arrives.
        "edges": [[source, target] for target, source in seen],
        "tokens": [
            {
                "says": f"token {k}" + (", a root: reaches everyone" if k in roots else ""),
                "colour": VERMILION if k in roots else BLUE,
            }
            for k in range(n)
        ],
    }


def graph_tokens(mask: str, tokens: int) -> int:
    """How many tokens to draw: few, unless the mask only exists for more."""
    for n in range(min(tokens, GRAPH_TOKENS), tokens):
        try:
            parse_mask(mask).check(n)
        except RequestError:
            continue
        return n
    return tokens
