"""Interactive plots as plain data, which the scripts beside this file draw in a report and on the page.

A plot has a `kind`: `panels` (curves, areas, bars and maps), `graph`, `motion` or `table`. Many numbers travel as
whole numbers of 16 bits, little-endian, in base 64. Nothing is fetched, and words are only ever put in as text.
"""

from __future__ import annotations

import base64
import functools
import html
import json
import math
from collections.abc import Iterable
from importlib import resources
from typing import Any

import numpy as np

from rankfall.drawing.canvas import COLOURS

BLUE, VERMILION, GREEN, PURPLE, ORANGE = COLOURS[:5]
CYCLE = COLOURS[:6]

# In the order in which they build on each other. A report draws panels alone.
PANEL_SCRIPTS = ("basics.js", "axes.js", "marks.js", "panels.js", "pointing.js", "element.js")
ALL_SCRIPTS = (*PANEL_SCRIPTS[:-1], "graph.js", "motion.js", "table.js", "element.js")
STYLE = "plot.css"

LARGEST = 32767
# Of 16 bits without a sign the last value says that there is no number.
SHARES, NONE = 65534, 65535


def line(name: str, x: Iterable[float], y: Iterable[float], colour: str, **more: Any) -> dict[str, Any]:
    """A curve; `dash` (dash, dot), `width`, `dots` (their radius), `line=False`, and `notes` on points shape it."""
    return {"type": "line", "name": name, "x": list(x), "y": numbers(y), "colour": colour} | more


def panel(label: str, series: list[dict[str, Any]], *, share: float = 1, **axis: Any) -> dict[str, Any]:
    """Series over one upright axis: `log`, `zero` (seen in any case); `share` of the height."""
    return {"y": {"label": label, **axis}, "series": series, "share": share}


def lines(name: str, title: str, x: dict[str, Any], panels: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Panels above each other over the axis `x`; `name` is what the browser remembers a reader's choices by."""
    return {"kind": "panels", "name": name, "title": title, "height": 360, "x": x, "panels": panels} | more


def matrix(name: str, title: str, labels: tuple[str, str], heat: dict[str, Any], height: int) -> dict[str, Any]:
    """A square matrix as a map of cells, its first row at the top; `labels` name the x axis and the y axis."""
    side = heat["size"][0]
    ends = [-0.5, side - 0.5]
    one = {"type": "heat", "x": ends, "y": ends, **heat}
    axes = {
        "x": {"label": labels[0], "range": ends, "whole": True},
        "y": {"label": labels[1], "range": ends[::-1], "whole": True},
    }
    panels = [{**axes, "series": [one], "equal": True, "scale": heat["scale"], "cell": [0, 0, 1, 1]}]
    return {"kind": "panels", "name": name, "title": title, "height": height, "panels": panels}


def numbers(values: Iterable[float]) -> list[float | None]:
    """What is not finite is a gap: JSON knows no other numbers."""
    return [float(value) if math.isfinite(value) else None for value in values]


def packed_places(points: Any) -> str:
    """Coordinates in [-1, 1], to one part in 32767: a screen has fewer dots."""
    return _letters(np.round(np.clip(np.asarray(points), -1, 1) * LARGEST), "<i2")


def packed_shares(shares: Any, allowed: Any, top: float) -> str:
    """Numbers in [0, top], to one part in 65534; those not allowed are marked."""
    whole = np.round(np.clip(np.asarray(shares), 0, top) * (SHARES / top))
    return _letters(np.where(np.asarray(allowed), whole, NONE), "<u2")


def _letters(values: Any, kind: str) -> str:
    return base64.b64encode(values.astype(kind).tobytes()).decode()


def element(plot: dict[str, Any]) -> str:
    """One plot. Whatever its words hold, they stay inside the attribute, and the scripts put them in as text."""
    words = json.dumps(plot, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    # JSON is full of double quotes: between single ones they need no escape.
    inside = html.escape(words, quote=False).replace("'", "&#39;")
    return (
        f"<rankfall-plot class='plot' data-name='{html.escape(plot['name'])}' data-plot='{inside}'></rankfall-plot>"
    )


@functools.cache
def scripts(names: tuple[str, ...] = ALL_SCRIPTS) -> str:
    """The scripts that define the element, as one text."""
    folder = resources.files("rankfall.drawing").joinpath("scripts")
    parts = [folder.joinpath(name).read_text(encoding="utf-8") for name in names]
    style = json.dumps(folder.joinpath(STYLE).read_text(encoding="utf-8"))
    # A page may ask for its scripts twice, as when a tab of the browser wakes up: an element is defined once.
    return "\n".join(['if (!customElements.get("rankfall-plot")) {', f"const STYLE = {style};", *parts, "}"])
