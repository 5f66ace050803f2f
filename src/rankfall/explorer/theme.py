"""One look for every figure of the page: readable on white and on black, since only the browser knows which it is."""

from __future__ import annotations

from typing import Any

from rankfall.drawing.canvas import COLOURS

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = COLOURS[:6]
# Greys half-way between white and black, for what belongs to both.
INK, GRID = "#808890", "rgba(128,136,144,0.25)"
CLEAR = "rgba(0,0,0,0)"


def layout(title: str, height: int, **more: Any) -> dict[str, Any]:
    """The layout that all figures share."""
    base: dict[str, Any] = {
        "title": {"text": title, "font": {"size": 14}, "x": 0, "xref": "paper"},
        "height": height,
        "margin": {"l": 56, "r": 16, "t": 44, "b": 44},
        "paper_bgcolor": CLEAR,
        "plot_bgcolor": CLEAR,
        "font": {"color": INK, "size": 12},
        # Below, where a long legend pushes nothing and covers no title on a narrow screen.
        "legend": {"orientation": "h", "x": 0, "y": -0.2, "yanchor": "top"},
        "hovermode": "closest",
        "template": "none",
        # A figure drawn anew keeps the zoom and the camera that the reader chose.
        "uirevision": title,
    }
    return base | more


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis of a flat figure."""
    return {
        "title": {"text": title},
        "gridcolor": GRID,
        "zeroline": False,
        "linecolor": INK,
        "automargin": True,
    } | more


def bare(**more: Any) -> dict[str, Any]:
    """An axis without marks."""
    return {"visible": False, "showgrid": False, "zeroline": False} | more


def line(name: str, x: Any, y: Any, colour: str, **more: Any) -> dict[str, Any]:
    """A curve; `dash` and `width` shape it."""
    shape = {"color": colour, "width": more.pop("width", 2), "dash": more.pop("dash", "solid")}
    return {
        "type": "scatter",
        "mode": "lines",
        "name": name,
        "x": list(x),
        "y": list(y),
        "line": shape,
    } | more


def figure(data: list[dict[str, Any]], shape: dict[str, Any], frames: list[dict[str, Any]] | None = None) -> Any:
    """A Plotly figure of plain dictionaries."""
    import plotly.graph_objects as go

    return go.Figure(data=data, layout=shape, frames=frames)
