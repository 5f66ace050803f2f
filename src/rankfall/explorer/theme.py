"""One look for every plot of the page: colours that everybody can tell apart, and how a curve is described."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from rankfall.drawing.canvas import COLOURS

BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY = COLOURS[:6]


def line(name: str, x: Iterable[float], y: Iterable[float], colour: str, **more: Any) -> dict[str, Any]:
    """A curve; `dash` (dash, dot), `width`, `dots` (their radius), `line=False`, and `notes` on points shape it."""
    return {"name": name, "x": list(x), "y": numbers(y), "colour": colour} | more


def panel(label: str, series: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Curves over one upright axis: `log`, `zero` (seen in any case), `share` of the height."""
    return {"label": label, "series": series} | more


def lines(name: str, title: str, x: dict[str, Any], panels: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """A plot of curves; `name` is what the browser remembers a reader's choices by."""
    return {"kind": "lines", "name": name, "title": title, "height": 360, "x": x, "panels": panels} | more


def numbers(values: Iterable[float]) -> list[float | None]:
    """What is not finite is a gap: JSON knows no other numbers."""
    return [float(value) if math.isfinite(value) else None for value in values]
