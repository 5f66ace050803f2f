"""Controls made from their descriptions, and words and plots as the page shows them."""

from __future__ import annotations

import base64
import html
from dataclasses import MISSING, fields
from typing import Any

from rankfall.catalogue import MASKS
from rankfall.drawing.plots import element, scripts
from rankfall.explorer.state import Choice, Knob, controls
from rankfall.masks import Mask, parse_mask


def widget(kind: type[Any], name: str, value: Any) -> Any:
    """The widget of a state's field, set to a value: a slider over steps, or a list of names."""
    import marimo as mo

    control = controls(kind)[name]
    if isinstance(control, Choice):
        return mo.ui.dropdown(list(control.names), value=value, label=control.label)
    assert isinstance(control, Knob)
    return slider(control.stops(value), value, control.label)


def slider(steps: list[float], value: float, label: str) -> Any:
    """A slider that shows its value and reports while it is dragged."""
    import marimo as mo

    return mo.ui.slider(steps=steps, value=value, label=label, show_value=True)


def row(items: list[Any]) -> Any:
    """Controls side by side, as many as the screen is wide for."""
    import marimo as mo

    return mo.hstack(items, justify="start", wrap=True, gap=1.5)


def mask_kinds() -> dict[str, type[Mask]]:
    """Every named mask."""
    return {kind.name: kind for kind in MASKS}


def mask_numbers(name: str, current: str) -> Any:
    """Sliders for the numbers of a mask, by their names, set as in `current` where that is of the same kind."""
    import marimo as mo

    kind, same = MASKS[name], parse_mask(current)
    start = same if same.name == name else kind.examples()[0]
    made = {}
    for number in fields(kind):
        value = getattr(start, number.name)
        # A number that may be left out is a seed or the like, and may be zero.
        whole = range(1, 65) if number.default is MISSING else range(100)
        steps = (step / 20 for step in range(1, 21)) if isinstance(value, float) else whole
        made[number.name] = slider(sorted({*steps, value}), value, number.name)
    return mo.ui.dictionary(made)


def mask_text(name: str, numbers: dict[str, float]) -> str:
    """The mask as an argument."""
    return ":".join([name, *(f"{value:g}" for value in numbers.values())])


def as_text(text: str) -> Any:
    """Words that came from a link, a file or a folder's name: shown as they are, never read as markup."""
    import marimo as mo

    return mo.Html(f'<div style="white-space: pre-wrap">{html.escape(text)}</div>')


def facts(pairs: list[tuple[str, str]]) -> str:
    """Names and values side by side, as HTML."""
    told = (f"<span>{html.escape(name)} <b>{html.escape(value)}</b></span>" for name, value in pairs)
    return f'<div class="rankfall-facts">{"".join(told)}</div>'


def small(text: str) -> str:
    """A remark under something, as HTML."""
    return f'<p class="rankfall-remark">{html.escape(text)}</p>'


def side_by_side(*plots: dict[str, Any]) -> Any:
    """Plots beside each other, or under each other where the screen is narrow."""
    import marimo as mo

    return mo.Html(f'<div class="rankfall-plots">{"".join(map(element, plots))}</div>')


def script() -> str:
    """The element that loads all scripts, once, from the page itself."""
    packed = base64.b64encode(scripts().encode()).decode()
    return f'<script src="data:text/javascript;charset=utf-8;base64,{packed}"></script>'
