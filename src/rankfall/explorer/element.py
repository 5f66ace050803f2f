"""Many numbers in few letters: whole numbers of 16 bits, little-endian, in base 64. The scripts unpack them."""

from __future__ import annotations

import base64
import functools
import html
import json
import math
from collections.abc import Iterable
from importlib import resources
from typing import Any

import torch
from torch import Tensor

from rankfall.drawing.canvas import COLOURS

LARGEST = 32767
# Of 16 bits without a sign the last value says that there is no number.
SHARES, NONE = 65534, 65535


def packed_places(points: Tensor) -> str:
    """Coordinates in [-1, 1], to one part in 32767: a screen has fewer dots."""
    whole = (points.clamp(-1, 1) * LARGEST).round().to(torch.int16)
    return _letters(whole)


def packed_shares(shares: Tensor, allowed: Tensor, top: float) -> str:
    """Numbers in [0, top], to one part in 65534; those not allowed are marked."""
    whole = (shares.clamp(0, top) * (SHARES / top)).round().to(torch.int32).masked_fill(~allowed, NONE)
    return _letters(whole.to(torch.uint16))


def _letters(values: Tensor) -> str:
    array = values.contiguous().numpy()
    return base64.b64encode(array.astype(array.dtype.newbyteorder("<")).tobytes()).decode()


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


# In the order in which they build on each other.
SCRIPTS = ("basics.js", "axes.js", "lines.js", "heat.js", "graph.js", "motion.js", "table.js", "element.js")
STYLE = "plot.css"


def element(plot: dict[str, Any]) -> str:
    """One plot. Whatever its words hold, they stay inside the attribute, and the scripts put them in as text."""
    words = json.dumps(plot, allow_nan=False, separators=(",", ":"))
    return f'<rankfall-plot data-plot="{html.escape(words)}"></rankfall-plot>'


def side_by_side(*plots: dict[str, Any]) -> Any:
    """Plots beside each other, or under each other where the screen is narrow."""
    import marimo as mo

    return mo.Html(f'<div class="rankfall-plots">{"".join(map(element, plots))}</div>')


@functools.cache
def script() -> str:
    """The element that loads all scripts, once, from the page itself."""
    folder = resources.files("rankfall.explorer").joinpath("scripts")
    parts = [folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS]
    style = json.dumps(folder.joinpath(STYLE).read_text(encoding="utf-8"))
    # The page may ask for its scripts twice, as when a tab of the browser wakes up: an element is defined once.
    whole = "\n".join(
        ['if (!customElements.get("rankfall-plot")) {', f"const STYLE = {style};", *parts, "}"],
    )
    packed = base64.b64encode(whole.encode()).decode()
    return f'<script src="data:text/javascript;charset=utf-8;base64,{packed}"></script>'
