"""Tokens as points on the circle or the sphere, all recorded layers at once, to play or to scrub through."""

from __future__ import annotations

from typing import Any

from rankfall.explorer.packing import packed_places
from rankfall.explorer.token_curves import TokenCurves, nearest_row, shown_coordinates

HEIGHT = 470


def draw_motion(curves: TokenCurves, view: str, layer: int) -> dict[str, Any]:
    """Each token keeps its colour, from first to last; what is shown starts at the given layer."""
    axes = 3 if view == "3-D" else 2
    points, share = shown_coordinates(curves.tokens, axes)
    title = "Tokens on the sphere" + ("" if share > 0.9995 else f": {axes} directions, {share:.0%} of what there is")
    return {
        "kind": "motion",
        "name": "motion",
        "title": title,
        "height": HEIGHT,
        "axes": axes,
        "tokens": points.shape[1],
        "layers": list(curves.layers),
        "row": nearest_row(curves, layer),
        "places": packed_places(points),
    }
