"""A Matplotlib figure as an interactive one: the same lines, points, bars, bands and images, for Plotly to draw.

Every picture of the project is drawn once, with Matplotlib. This reads the finished figure, so that the vector files
and the interactive page can never show different numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
SYMBOLS = {
    "o": "circle", "s": "square", "^": "triangle-up", "v": "triangle-down", "D": "diamond", "d": "diamond-tall",
    "P": "cross", "X": "x", "x": "x-thin", "+": "cross-thin", "*": "star", ".": "circle", ",": "circle",
}  # fmt: skip
DECADES_OF_LOG_AXIS = {"log", "symlog"}


def interactive(figure: Figure) -> dict[str, Any]:
    """`{"data": [...], "layout": {...}}` for Plotly, one subplot per visible pair of axes."""
    panels = [axes for axes in figure.axes if axes.get_visible() and not _is_colour_bar(axes)]
    data: list[dict[str, Any]] = []
    layout: dict[str, Any] = {"annotations": [], "shapes": []}
    named: set[str] = set()
    for index, axes in enumerate(panels, start=1):
        suffix = "" if index == 1 else str(index)
        for trace in _traces(axes):
            trace |= {"xaxis": f"x{suffix}", "yaxis": f"y{suffix}"}
            name = trace.get("name")
            if name is not None:
                # One entry in the legend switches the series of that name in all panels.
                trace |= {"legendgroup": name, "showlegend": name not in named}
                named.add(name)
            data.append(trace)
        layout[f"xaxis{suffix}"] = _axis(axes, "x", f"y{suffix}")
        layout[f"yaxis{suffix}"] = _axis(axes, "y", f"x{suffix}")
        layout["annotations"] += _texts(axes, suffix)
    _fill(layout, "x")
    _fill(layout, "y")
    return {"data": data, "layout": layout}


def _fill(layout: dict[str, Any], which: str) -> None:
    """Stretch the panels over the whole plot: Plotly makes its own room for labels and legend."""
    axes = [axis for name, axis in layout.items() if name.startswith(f"{which}axis")]
    low = min((axis["domain"][0] for axis in axes), default=0.0)
    high = max((axis["domain"][1] for axis in axes), default=1.0)
    for axis in axes:
        axis["domain"] = [(place - low) / (high - low) for place in axis["domain"]]


def _traces(axes: Axes) -> Iterator[dict[str, Any]]:
    from matplotlib.collections import PathCollection, PolyCollection, QuadMesh

    for image in axes.get_images():
        left, right, bottom, top = image.get_extent()
        pixels: Any = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
        if pixels.ndim == 2:
            rows, columns = pixels.shape
            step_x, step_y = (right - left) / columns, (top - bottom) / rows
            grid = pixels[::-1] if image.origin == "upper" else pixels
            yield _heatmap(
                grid, left + step_x * (np.arange(columns) + 0.5), bottom + step_y * (np.arange(rows) + 0.5)
            )
    for collection in axes.collections:
        if isinstance(collection, QuadMesh):
            values: Any = np.ma.filled(np.ma.asarray(collection.get_array(), dtype=float), np.nan)
            corners: Any = collection.get_coordinates()
            yield _heatmap(
                values.reshape(corners.shape[0] - 1, -1), _middles(corners[0, :, 0]), _middles(corners[:, 0, 1])
            )
        elif isinstance(collection, PathCollection):
            yield _scatter(collection)
        elif isinstance(collection, PolyCollection):
            yield from _bands(collection)
    for container in axes.containers:
        if _is_bars(container):
            yield _bars(container)
    for line in axes.get_lines():
        trace = _line(axes, line)
        if trace is not None:
            yield trace


def _line(axes: Axes, line: Any) -> dict[str, Any] | None:
    from matplotlib.colors import to_hex

    x, y = _spanning(axes, line)
    if len(x) == 0 or not line.get_visible():
        return None
    drawn = line.get_linestyle() not in ("None", "", " ")
    marked = line.get_marker() not in ("None", None, "", " ")
    mode = "+".join(["lines"] * drawn + ["markers"] * marked)
    if not mode:
        return None
    trace = {"type": "scatter", "x": _numbers(x), "y": _numbers(y), "mode": mode, **_name(line.get_label())}
    if drawn:
        dash = DASHES.get(line.get_linestyle(), "solid")
        trace["line"] = {"color": to_hex(line.get_color()), "width": float(line.get_linewidth()), "dash": dash}
    if marked:
        hollow = str(line.get_markerfacecolor()).lower() == "none"
        symbol = SYMBOLS.get(str(line.get_marker()), "circle") + ("-open" if hollow else "")
        trace["marker"] = {
            "color": to_hex(line.get_color()),
            "size": float(line.get_markersize()) + 1,
            "symbol": symbol,
        }
    trace["opacity"] = float(line.get_alpha() if line.get_alpha() is not None else 1)
    return trace


def _spanning(axes: Axes, line: Any) -> tuple[Any, Any]:
    """Data of a line; `axhline` and `axvline` store shares of the axes, which are turned into limits."""
    x, y = np.asarray(line.get_xdata(), dtype=float), np.asarray(line.get_ydata(), dtype=float)
    transform = line.get_transform()
    if transform == axes.get_yaxis_transform(which="grid"):
        x = np.asarray(axes.get_xlim())
    elif transform == axes.get_xaxis_transform(which="grid"):
        y = np.asarray(axes.get_ylim())
    return x, y


def _scatter(collection: Any) -> dict[str, Any]:
    from matplotlib.colors import to_hex

    offsets: Any = np.ma.filled(np.ma.asarray(collection.get_offsets(), dtype=float), np.nan)
    face = collection.get_facecolor()
    colours = [to_hex(colour) for colour in (face if len(face) else collection.get_edgecolor())]
    sizes = np.sqrt(np.asarray(collection.get_sizes(), dtype=float))
    return {
        "type": "scatter",
        "mode": "markers",
        "x": _numbers(offsets[:, 0]),
        "y": _numbers(offsets[:, 1]),
        "marker": {
            "color": colours[0] if len(set(colours)) == 1 else colours,
            "size": float(sizes[0]) if len(sizes) == 1 else _numbers(sizes),
        },
        "opacity": float(collection.get_alpha() or 1),
        **_name(collection.get_label()),
    }


def _bands(collection: Any) -> Iterator[dict[str, Any]]:
    from matplotlib.colors import to_rgba

    face = collection.get_facecolor()
    for index, path in enumerate(collection.get_paths()):
        red, green, blue, alpha = to_rgba(face[min(index, len(face) - 1)]) if len(face) else (0.5, 0.5, 0.5, 0.2)
        corners = path.vertices
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": _numbers(corners[:, 0]),
            "y": _numbers(corners[:, 1]),
            "fill": "toself",
            "fillcolor": f"rgba({red * 255:.0f},{green * 255:.0f},{blue * 255:.0f},{alpha:.3f})",
            "line": {"width": 0},
            "hoverinfo": "skip",
            **_name(collection.get_label()),
        }


def _bars(container: Any) -> dict[str, Any]:
    from matplotlib.colors import to_hex

    lying = getattr(container, "orientation", "vertical") == "horizontal"
    rectangles = list(container)
    places = [r.get_y() + r.get_height() / 2 if lying else r.get_x() + r.get_width() / 2 for r in rectangles]
    lengths = [r.get_width() if lying else r.get_height() for r in rectangles]
    return {
        "type": "bar",
        "orientation": "h" if lying else "v",
        "x": _numbers(lengths if lying else places),
        "y": _numbers(places if lying else lengths),
        "width": _numbers([r.get_height() if lying else r.get_width() for r in rectangles]),
        "base": _numbers([r.get_x() if lying else r.get_y() for r in rectangles]),
        "marker": {"color": [to_hex(r.get_facecolor()) for r in rectangles]},
        **_name(container.get_label()),
    }


def _axis(axes: Axes, which: str, anchor: str) -> dict[str, Any]:
    getter = axes.xaxis if which == "x" else axes.yaxis
    scale = axes.get_xscale() if which == "x" else axes.get_yscale()
    low, high = axes.get_xlim() if which == "x" else axes.get_ylim()
    logarithmic = scale in DECADES_OF_LOG_AXIS and min(low, high) > 0
    box = axes.get_position()
    axis: dict[str, Any] = {
        "title": {"text": _plain_text(getter.get_label_text())},
        "type": "log" if logarithmic else "linear",
        "range": [float(np.log10(low)), float(np.log10(high))] if logarithmic else [float(low), float(high)],
        "domain": [float(box.x0), float(box.x1)] if which == "x" else [float(box.y0), float(box.y1)],
        "anchor": anchor,
    }
    labels = [tick.get_text() for tick in getter.get_ticklabels()]
    places = [float(place) for place in getter.get_ticklocs()]
    # Words on an axis (names of masks, say) must be carried over; plain numbers Plotly writes better itself.
    if len(labels) == len(places) and any(label and not _is_number(label) for label in labels):
        axis |= {"tickmode": "array", "tickvals": places, "ticktext": [_plain_text(label) for label in labels]}
    return axis


def _texts(axes: Axes, suffix: str) -> Iterator[dict[str, Any]]:
    if axes.get_title():
        yield {
            "text": _plain_text(axes.get_title()),
            "x": 0.5,
            "y": 1.0,
            "xref": f"x{suffix} domain",
            "yref": f"y{suffix} domain",
            "yanchor": "bottom",
            "showarrow": False,
        }
    for text in axes.texts:
        x, y = text.get_position()
        if text.get_text() and text.get_transform() == axes.transData:
            log_x, log_y = axes.get_xscale() == "log", axes.get_yscale() == "log"
            yield {
                "text": _plain_text(text.get_text()),
                "x": float(np.log10(x)) if log_x else float(x),
                "y": float(np.log10(y)) if log_y else float(y),
                "xref": f"x{suffix}",
                "yref": f"y{suffix}",
                "showarrow": False,
                "xanchor": text.get_horizontalalignment(),
            }


def _heatmap(values: Any, x: Any, y: Any) -> dict[str, Any]:
    return {
        "type": "heatmap",
        "z": [_numbers(row) for row in values],
        "x": _numbers(x),
        "y": _numbers(y),
        "colorscale": "Viridis",
        "showscale": len(np.unique(values)) > 2,
    }


def _name(label: Any) -> dict[str, Any]:
    """Matplotlib marks series without a legend entry by a leading underscore."""
    text = str(label)
    return {"showlegend": False} if not text or text.startswith("_") else {"name": _plain_text(text)}


def _numbers(values: Any) -> list[float | None]:
    """Plain floats; what is not finite becomes a gap. Seven digits are more than a screen can show."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=float)]


def _plain_text(text: str) -> str:
    """Plotly reads `<` as markup, and Matplotlib's dollar signs mean nothing to it."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("\n", "<br>")
    if escaped.count("$") >= 2:
        for name, letter in GREEK.items():
            escaped = escaped.replace(f"\\{name}", letter)
        escaped = (
            escaped.replace("$", "").replace("\\mathrm", "").replace("\\log", "log").replace("{", "").replace("}", "")
        )
    return escaped


GREEK = {
    "mu": "μ", "lambda": "λ", "epsilon": "ε", "rho": "ρ", "eta": "η", "theta": "θ", "pi": "π", "sigma": "σ",
    "delta": "δ", "times": "×", "cdot": "·", "leq": "≤", "geq": "≥", "infty": "∞", "pm": "±", "to": "→", "le": "≤",
}  # fmt: skip


def _is_number(label: str) -> bool:
    """Numbers as Matplotlib writes them: plain, with a true minus sign, or set in its own mathematics."""
    if label.startswith("$\\mathdefault"):
        return True
    try:
        float(label.replace("\u2212", "-").replace(",", ""))
    except ValueError:
        return False
    return True


def _is_bars(container: Any) -> bool:
    from matplotlib.container import BarContainer

    return isinstance(container, BarContainer)


def _is_colour_bar(axes: Axes) -> bool:
    return hasattr(axes, "_colorbar") or axes.get_label() == "<colorbar>"


def _middles(edges: Any) -> Any:
    return (np.asarray(edges)[1:] + np.asarray(edges)[:-1]) / 2
