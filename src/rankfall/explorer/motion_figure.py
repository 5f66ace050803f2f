"""Tokens as points on the circle or the sphere, one frame per recorded layer, to play or to scrub through."""

from __future__ import annotations

import math
from typing import Any

from rankfall.explorer.theme import GRID, INK, bare, figure, layout
from rankfall.explorer.token_curves import TokenCurves, nearest_row, shown_coordinates

# Milliseconds of a frame while playing.
PACE = 120
HEIGHT = 470


def draw_motion(curves: TokenCurves, view: str, layer: int) -> Any:
    """Each token keeps its colour, from first to last; what is shown starts at the given layer."""
    axes = 3 if view == "3-D" else 2
    points, share = shown_coordinates(curves.tokens, axes)
    places = points.float().numpy()
    start = nearest_row(curves, layer)
    # A frame carries nothing but places: what does not change is said once, in the trace itself.
    frames = [
        {"name": str(shown), "data": [_places(places[row])], "traces": [1]} for row, shown in enumerate(curves.layers)
    ]
    title = "Tokens on the sphere" + ("" if share > 0.9995 else f": {axes} directions, {share:.0%} of what there is")
    shape = layout(title, HEIGHT, showlegend=False, margin={"l": 8, "r": 8, "t": 44, "b": 8})
    shape |= _scene() if axes == 3 else _plane()
    shape |= {"sliders": [_scrubber(curves.layers, start)], "updatemenus": [_player()]}
    return figure([_outline(axes), _tokens(places[start])], shape, frames)


def _places(points: Any) -> dict[str, Any]:
    """Coordinates (n, 2) or (n, 3), which Plotly packs as binary numbers."""
    axes = points.shape[-1]
    kind = "scatter3d" if axes == 3 else "scatter"
    return {"type": kind, **{name: points[:, k].copy() for k, name in enumerate("xyz"[:axes])}}


def _tokens(points: Any) -> dict[str, Any]:
    count = len(points)
    return _places(points) | {
        "mode": "markers",
        "marker": {
            "size": 5 if points.shape[-1] == 3 else 9,
            "color": list(range(count)),
            "colorscale": "Viridis",
            "cmin": 0,
            "cmax": max(1, count - 1),
            "line": {"width": 0.5, "color": INK},
        },
        "text": [f"token {place}" for place in range(count)],
        "hoverinfo": "text",
    }


def _outline(axes: int) -> dict[str, Any]:
    """The unit circle; in space three of them, which the eye takes for a sphere."""
    turn = [2 * math.pi * step / 60 for step in range(61)]
    cos, sin, zero = [round(math.cos(a), 4) for a in turn], [round(math.sin(a), 4) for a in turn], [0.0] * 61
    style: dict[str, Any] = {"mode": "lines", "line": {"color": GRID, "width": 2}, "hoverinfo": "skip"}
    if axes == 2:
        return {"type": "scatter", "x": cos, "y": sin, **style}
    gap: list[float | None] = [None]
    # Lines in space know no see-through colours: a plain grey, thinned out as a whole.
    style |= {"line": {"color": INK, "width": 2}, "opacity": 0.4}
    return {
        "type": "scatter3d",
        "x": cos + gap + cos + gap + zero,
        "y": sin + gap + zero + gap + cos,
        "z": zero + gap + sin + gap + sin,
        **style,
    }


def _plane() -> dict[str, Any]:
    reach = [-1.08, 1.08]
    return {"xaxis": bare(range=reach, constrain="domain"), "yaxis": bare(range=reach, scaleanchor="x")}


def _scene() -> dict[str, Any]:
    side = bare(range=[-1.05, 1.05], showspikes=False)
    camera = {"eye": {"x": 1.2, "y": 1.2, "z": 0.7}}
    return {"scene": {"xaxis": side, "yaxis": side, "zaxis": side, "aspectmode": "cube", "camera": camera}}


def _scrubber(layers: tuple[int, ...], start: int) -> dict[str, Any]:
    jump = {"mode": "immediate", "frame": {"duration": 0, "redraw": True}, "transition": {"duration": 0}}
    steps = [{"label": str(layer), "method": "animate", "args": [[str(layer)], jump]} for layer in layers]
    return {
        "active": start,
        "steps": steps,
        "x": 0.02,
        "len": 0.96,
        "y": 0,
        "pad": {"t": 4, "b": 4},
        # Room above the bar for the buttons, so that nothing overlaps on a narrow screen.
        "currentvalue": {"prefix": "layer ", "xanchor": "right", "font": {"size": 13}, "offset": 16},
        "bgcolor": GRID,
        "bordercolor": GRID,
        "tickcolor": INK,
    }


def _player() -> dict[str, Any]:
    run = {"fromcurrent": True, "frame": {"duration": PACE, "redraw": True}, "transition": {"duration": 0}}
    halt = {"mode": "immediate", "frame": {"duration": 0, "redraw": False}, "transition": {"duration": 0}}
    return {
        "type": "buttons",
        "direction": "left",
        "showactive": False,
        "x": 0,
        "xanchor": "left",
        "y": 0,
        "yanchor": "top",
        "pad": {"t": 4, "l": 4},
        "bgcolor": "rgba(128,136,144,0.12)",
        "bordercolor": GRID,
        "buttons": [
            {"label": "▶", "method": "animate", "args": [None, run]},
            {"label": "❚❚", "method": "animate", "args": [[None], halt]},
        ],
    }
