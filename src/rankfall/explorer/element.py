"""Plots as elements of the page: plain data here, drawn in the browser by the scripts beside this file.

A general plotting library took most of a quarter of a second to draw a tab anew; these scripts take a few
milliseconds, and one message of some kilobytes carries all layers of a run.
"""

from __future__ import annotations

import base64
import functools
import html
import json
from importlib import resources
from typing import Any

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
