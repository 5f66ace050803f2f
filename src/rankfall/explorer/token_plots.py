"""What the first tab draws of a simulation: curves by depth, attention, the mask's graph, and tokens that move."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rankfall.drawing.collapse import tail_line
from rankfall.drawing.plots import (
    BLUE,
    GREEN,
    ORANGE,
    PURPLE,
    VERMILION,
    line,
    lines,
    matrix,
    packed_places,
    packed_shares,
    panel,
)
from rankfall.errors import RequestError
from rankfall.explorer.state import TokenState
from rankfall.explorer.token_curves import TokenCurves, attention_at, nearest_row, reasons, summary, token_curves
from rankfall.explorer.widgets import as_text, facts, side_by_side, small
from rankfall.masks import parse_mask

CURVES_HEIGHT, MATRIX_HEIGHT, MOTION_HEIGHT = 400, 400, 470
# With more tokens than this the arrows of a graph hide each other.
GRAPH_TOKENS = 14


def shown_coordinates(tokens: Tensor, axes: int) -> tuple[Tensor, float]:
    """Tokens (layers, n, d) scaled to length one, in the fixed 2 or 3 directions that hold most of them.

    Returns (layers, n, axes) and the share of the squared lengths shown. Up to `axes` dimensions nothing is turned
    or lost; the same directions serve all layers, so that what moves on the screen moves in space.
    """
    length = torch.linalg.vector_norm(tokens, dim=-1, keepdim=True)
    unit = tokens / length.where(length > 0, 1.0)
    d = unit.shape[-1]
    if d <= axes:
        return torch.nn.functional.pad(unit, (0, axes - d)), 1.0
    flat = unit.reshape(-1, d)
    values, directions = torch.linalg.eigh(flat.T @ flat)
    kept = directions[:, -axes:].flip(-1)
    # A direction is known up to its sign: the largest entry is made positive, so that redraws do not flip.
    kept = kept * torch.sign(kept.gather(0, kept.abs().argmax(dim=0, keepdim=True)))
    share: Any = values[-axes:].sum() / values.sum()
    return unit @ kept, float(share)


def draw_depth(curves: TokenCurves, layer: int) -> dict[str, Any]:
    """Above log10 mu, below effective and energy rank; a thin line marks the layer that is shown elsewhere."""
    fall = [line(f"{curves.followed}, measured", curves.layers, curves.log10_mu, BLUE)]
    if curves.bound_log10_mu is not None:
        fall.append(line("theorem's bound", curves.layers, curves.bound_log10_mu, VERMILION, dash="dash"))
    tail = tail_line(curves.tail_rate, curves.layers, curves.log10_mu)
    if tail is not None:
        fall.append(line("tail rate, by theory", *tail, ORANGE, dash="dot", width=3))
    ranks = [
        line("effective rank", curves.layers, curves.effective_rank, GREEN),
        line("energy rank", curves.layers, curves.energy_rank, PURPLE, dash="dash"),
    ]
    panels = [panel(f"log10 {curves.followed}", fall, share=6), panel("rank", ranks, share=4, zero=True)]
    return lines("depth", "Collapse by depth", {"label": "layer"}, panels, mark=layer, height=CURVES_HEIGHT)


def draw_attention(attention: Tensor, mask: str, layer: int) -> dict[str, Any]:
    """Row i: how token i spreads its attention. What the mask forbids stays empty."""
    n = attention.shape[-1]
    top = max(float(attention.max()), 1e-12)
    heat = {
        "name": "attention",
        "size": [n, n],
        "packed": packed_shares(attention, parse_mask(mask).dense(n), top),
        "top": top,
        "scale": {"low": 0, "high": top},
        "says": "token {row} attends to {column}",
        "empty": "forbidden by the mask",
    }
    title = f"Attention in layer {layer + 1}"
    return matrix("attention", title, ("attends to", "token"), heat, MATRIX_HEIGHT)


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
        "height": MATRIX_HEIGHT,
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


def draw_motion(curves: TokenCurves, view: str, layer: int) -> dict[str, Any]:
    """Each token keeps its colour, from first to last; what is shown starts at the given layer."""
    axes = 3 if view == "3-D" else 2
    points, share = shown_coordinates(curves.tokens, axes)
    title = "Tokens on the sphere" + ("" if share > 0.9995 else f": {axes} directions, {share:.0%} of what there is")
    return {
        "kind": "motion",
        "name": "motion",
        "title": title,
        "height": MOTION_HEIGHT,
        "axes": axes,
        "tokens": points.shape[1],
        "layers": list(curves.layers),
        "row": nearest_row(curves, layer),
        "places": packed_places(points),
    }


def token_view(token: TokenState) -> Any:
    """A run in words, its tokens, its curves, the attention of the layer shown, and the mask's graph."""
    import marimo as mo

    try:
        curves = token_curves(token)
    except RequestError as error:
        return mo.callout(as_text(f"Not possible: {error}"), kind="warn")
    row = nearest_row(curves, token.layer)
    layer = curves.layers[row]
    # In an element of their own, also when empty: with one child more the page would make all plots anew.
    why = f"<div>{''.join(map(small, reasons(curves)))}</div>"
    plots = side_by_side(
        draw_motion(curves, token.view, layer),
        draw_depth(curves, layer),
        draw_attention(attention_at(token, curves, row), token.mask, layer),
        draw_graph(token.mask, token.tokens),
    )
    return mo.Html("".join([facts(summary(curves)), why, plots.text]))
