"""The attention matrix of one layer, and the mask's graph."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rankfall.attention.masks import parse_mask
from rankfall.errors import RequestError
from rankfall.explorer.theme import BLUE, GRID, INK, VERMILION, axis, bare, figure, layout

HEIGHT = 400
# More tokens than this make a ball of wool of the graph.
GRAPH_TOKENS = 14


def draw_attention(attention: Tensor, mask: str, layer: int) -> Any:
    """Row i: how token i spreads its attention. What the mask forbids stays empty."""
    n = attention.shape[-1]
    allowed = parse_mask(mask).dense(n)
    shown = attention.masked_fill(~allowed, math.nan).float().numpy()
    heat = {
        "type": "heatmap",
        "z": shown,
        "colorscale": "Viridis",
        "zmin": 0,
        "hovertemplate": "token %{y} attends to %{x}: %{z:.4f}<extra></extra>",
        "hoverongaps": False,
        "colorbar": {"thickness": 10, "outlinewidth": 0},
    }
    shape = layout(f"Attention in layer {layer + 1}", HEIGHT)
    shape |= {
        "xaxis": axis("attends to", constrain="domain", showgrid=False),
        "yaxis": axis("token", autorange="reversed", scaleanchor="x", constrain="domain", showgrid=False),
    }
    return figure([heat], shape)


def draw_graph(mask: str, tokens: int) -> Any:
    """Tokens on a circle, an arrow where information flows; roots, which reach everyone, stand out."""
    n = graph_tokens(mask, tokens)
    kind = parse_mask(mask)
    allowed, facts = kind.dense(n), kind.facts(n)
    places = [(math.sin(2 * math.pi * k / n), math.cos(2 * math.pi * k / n)) for k in range(n)]
    xs: list[float | None] = []
    ys: list[float | None] = []
    for target, source in (allowed & ~torch.eye(n, dtype=torch.bool)).nonzero().tolist():
        (x0, y0), (x1, y1) = places[source], places[target]
        # Arrows end just short of the target's disc, so that their heads can be seen.
        xs += [x0 + 0.08 * (x1 - x0), x1 - 0.12 * (x1 - x0), None]
        ys += [y0 + 0.08 * (y1 - y0), y1 - 0.12 * (y1 - y0), None]
    arrows = {
        "type": "scatter",
        "mode": "lines+markers",
        "x": xs,
        "y": ys,
        "line": {"color": GRID, "width": 1},
        "marker": {
            "symbol": "arrow",
            "size": 8,
            "angleref": "previous",
            "color": INK,
            "opacity": [0, 0.8, 0] * n * n,
        },
        "hoverinfo": "skip",
    }
    colours = [VERMILION if k in facts.roots else BLUE for k in range(n)]
    discs = {
        "type": "scatter",
        "mode": "markers+text",
        "x": [x for x, _ in places],
        "y": [y for _, y in places],
        "text": [str(k) for k in range(n)],
        "textfont": {"color": "white", "size": 10},
        "marker": {"size": 20, "color": colours},
        "hovertext": [f"token {k}" + (", a root: reaches everyone" if k in facts.roots else "") for k in range(n)],
        "hoverinfo": "text",
    }
    count = "" if n == tokens else f" at {n} tokens"
    shape = layout(f"The mask's graph{count}, roots in orange", HEIGHT, showlegend=False)
    reach = [-1.15, 1.15]
    shape |= {"xaxis": bare(range=reach, constrain="domain"), "yaxis": bare(range=reach, scaleanchor="x")}
    shape["margin"] = {"l": 8, "r": 8, "t": 44, "b": 8}
    return figure([arrows, discs], shape)


def graph_tokens(mask: str, tokens: int) -> int:
    """How many tokens to draw: few, unless the mask only exists for more."""
    for n in range(min(tokens, GRAPH_TOKENS), tokens):
        try:
            parse_mask(mask).check(n)
        except RequestError:
            continue
        return n
    return tokens
