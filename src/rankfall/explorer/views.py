"""What a tab shows of a state, all of it at once: words and plots."""

from __future__ import annotations

from typing import Any

from rankfall.errors import RequestError
from rankfall.explorer import head_curves, token_curves
from rankfall.explorer.element import side_by_side
from rankfall.explorer.head_curves import draw_heads, draw_ranks
from rankfall.explorer.state import HeadState, TokenState
from rankfall.explorer.token_curves import draw_attention, draw_depth, draw_graph, draw_motion
from rankfall.explorer.widgets import as_text, facts, small

HEADS_NOTE = (
    "The target is the nearer of two orthonormal points. The floor is proved: no weights go below it. Random heads "
    "are fitted as well as can be; their error is predicted, and theirs is rank 1 whatever r is."
)


def token_view(token: TokenState) -> Any:
    """A run in words, its tokens, its curves, the attention of the layer shown, and the mask's graph."""
    import marimo as mo

    try:
        curves = token_curves.token_curves(token)
    except RequestError as error:
        return mo.callout(as_text(f"Not possible: {error}"), kind="warn")
    row = token_curves.nearest_row(curves, token.layer)
    layer = curves.layers[row]
    # In an element of their own, also when empty: with one child more the page would make all plots anew.
    why = f"<div>{''.join(map(small, token_curves.reasons(curves)))}</div>"
    plots = side_by_side(
        draw_motion(curves, token.view, layer),
        draw_depth(curves, layer),
        draw_attention(token_curves.attention_at(token, curves, row), token.mask, layer),
        draw_graph(token.mask, token.tokens),
    )
    return mo.Html("".join([facts(token_curves.summary(curves)), why, plots.text]))


def head_view(head: HeadState) -> Any:
    """The chosen heads in words, and their errors by number and by rank."""
    import marimo as mo

    curves = head_curves.head_curves(head)
    plots = side_by_side(draw_heads(head, curves), draw_ranks(head, curves))
    return mo.Html("".join([facts(head_curves.summary(head, curves)), plots.text, small(HEADS_NOTE)]))
