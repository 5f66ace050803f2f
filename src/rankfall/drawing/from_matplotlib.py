"""A Matplotlib figure as an interactive plot: the same lines, points, bars, bands and images, as plain data.

Every picture of a report is drawn once, with Matplotlib. This reads the finished figure, so that the vector files and
the interactive page can never show different numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DASHES = {"-": "solid", "--": "dash", ":": "dot", "-.": "dashdot"}
SYMBOLS = {
    "o": "circle", "s": "square", "^": "up", "v": "down", "D": "diamond", "d": "diamond", "P": "cross", "X": "x",
    "x": "x", "+": "plus", "*": "star", ".": "circle", ",": "circle", "|": "upright", "_": "flat",
}  # fmt: skip
# Marks without a face show what is behind them; white ones hide it.
HOLLOW = {"none": "open", "white": "hollow"}
ANCHORS = {"left": "start", "center": "middle", "right": "end"}
# How far below its place a text's foot stands, in dots of the screen.
SINKS = {"top": 10, "center": 4, "center_baseline": 4}
GREEK = {
    "mu": "μ", "lambda": "λ", "epsilon": "ε", "rho": "ρ", "eta": "η", "theta": "θ", "pi": "π", "sigma": "σ",
    "delta": "δ", "times": "×", "cdot": "·", "leq": "≤", "geq": "≥", "infty": "∞", "pm": "±", "to": "→", "le": "≤",
}  # fmt: skip
DOTS_PER_INCH = 100
DOTS_PER_POINT = DOTS_PER_INCH / 72
LOWEST = 320


def plot_of(figure: Figure, name: str, says: str) -> dict[str, Any]:
    """The figure as a plot of kind `panels`, one panel for each visible pair of axes; `says` is read out."""
    # Constrained layout, limits and ticks are settled only when the figure is drawn.
    figure.draw_without_rendering()
    scales = dict(_colour_bars(figure))
    panels = [
        _panel(axes, scales.get(axes)) for axes in figure.axes if axes.get_visible() and not _is_colour_bar(axes)
    ]
    return {
        "kind": "panels",
        "name": name,
        "title": "",
        "says": says,
        "height": max(LOWEST, round(float(figure.get_figheight()) * DOTS_PER_INCH)),
        "panels": panels,
        "keys": list(_keys(figure, {one.get("group", one.get("name")) for p in panels for one in p["series"]})),
    }


def _panel(axes: Axes, scale: dict[str, Any] | None) -> dict[str, Any]:
    place = axes.get_subplotspec()
    assert place is not None, "panels stand in a grid"
    return {
        "cell": [place.rowspan.start, place.colspan.start, len(place.rowspan), len(place.colspan)],
        "title": _plain_text(axes.get_title()),
        "x": _axis(axes, "x"),
        "y": _axis(axes, "y"),
        "equal": axes.get_aspect() == 1.0,
        "series": list(_series(axes)),
        "texts": list(_texts(axes)),
        **({"scale": scale} if scale else {}),
    }


def _series(axes: Axes) -> Iterator[dict[str, Any]]:
    from matplotlib.collections import LineCollection, PathCollection, PolyCollection
    from matplotlib.container import BarContainer, ErrorbarContainer

    drawn: list[tuple[float, dict[str, Any]]] = [(-1.0, _image(image)) for image in axes.get_images()]
    owners: dict[Any, Any] = {}
    for container in axes.containers:
        if isinstance(container, BarContainer):
            owners |= dict.fromkeys(container, container)
            drawn.append((1.0, _bars(container)))
        elif isinstance(container, ErrorbarContainer):
            curve, caps, bars = container.lines
            owners |= dict.fromkeys([one for one in (curve, *caps, *bars) if one is not None], container)
    for patch in axes.patches:
        if patch not in owners and patch.get_visible():
            drawn.append((patch.get_zorder(), _area(axes, patch)))
    for collection in axes.collections:
        order = collection.get_zorder()
        if isinstance(collection, PathCollection):
            drawn.append((order, _scatter(collection)))
        elif isinstance(collection, PolyCollection):
            drawn += [(order, band) for band in _bands(collection)]
        elif isinstance(collection, LineCollection):
            drawn.append((order, _segments(collection, owners.get(collection))))
    for line in axes.get_lines():
        drawn += [(line.get_zorder(), one) for one in _line(axes, line, owners.get(line))]
    return (one for _, one in sorted(drawn, key=lambda pair: pair[0]))


def _line(axes: Axes, line: Any, owner: Any) -> Iterator[dict[str, Any]]:
    x, y = (np.asarray(values, dtype=float) for values in line.get_data())
    dashed = line.get_linestyle() not in ("None", "", " ")
    marked = line.get_marker() not in ("None", None, "", " ")
    named = _name(line, owner)
    if not line.get_visible() or not (dashed or marked) or (len(x) == 0 and not named["legend"]):
        return
    transform = line.get_transform()
    aside: Any = None
    if transform == axes.get_yaxis_transform(which="grid"):
        aside, x = "x", np.asarray(axes.get_xlim())
    elif transform == axes.get_xaxis_transform(which="grid"):
        aside, y = "y", np.asarray(axes.get_ylim())
    elif owner is not None and line is not owner.lines[0]:
        aside = "errors"
    one = {"type": "line", **named, "x": _numbers(x), "y": _numbers(y), **_look(line, dashed, marked)}
    yield one | ({"aside": aside} if aside else {})


def _look(line: Any, dashed: bool, marked: bool) -> dict[str, Any]:
    """Colour, dashes and marks of a line, or of its entry in a legend."""
    look = _colour(line.get_color(), line.get_alpha())
    if dashed:
        look |= {"dash": DASHES.get(line.get_linestyle(), "solid"), "width": _round(line.get_linewidth())}
    else:
        look["line"] = False
    if marked:
        hollow = HOLLOW.get(str(line.get_markerfacecolor()).lower())
        look |= {"dots": _round(line.get_markersize() / 2), "symbol": SYMBOLS.get(str(line.get_marker()), "circle")}
        look |= {"hollow": hollow} if hollow else {}
    return look


def _scatter(collection: Any) -> dict[str, Any]:
    places: Any = np.ma.filled(np.ma.asarray(collection.get_offsets(), dtype=float), np.nan)
    x, y = places.reshape(-1, 2).T
    faces, radii = collection.get_facecolors(), np.sqrt(np.atleast_1d(collection.get_sizes())) / 2
    hollow = len(faces) == 0
    colours = collection.get_edgecolors() if hollow else faces
    looks = [_colour(colour, None) for colour in (colours if len(colours) else ["black"])]
    one = {"type": "line", "line": False, **_name(collection), "x": _numbers(x), "y": _numbers(y), **looks[0]}
    if len(looks) > 1:
        one["colours"] = [look["colour"] for look in looks]
    one["dots"] = [_round(radius) for radius in radii] if len(radii) == len(x) > 1 else _round(radii[0])
    return one | {"symbol": _symbol(collection), **({"hollow": "open"} if hollow else {})}


def _symbol(collection: Any) -> str:
    """Matplotlib keeps of a marker only its outline."""
    from matplotlib.markers import MarkerStyle

    outline: Any = collection.get_paths()[0].vertices
    for marker, symbol in SYMBOLS.items():
        style = MarkerStyle(marker)
        known: Any = style.get_path().transformed(style.get_transform()).vertices
        if known.shape == outline.shape and np.allclose(known, outline):
            return symbol
    return "circle"


def _segments(collection: Any, owner: Any) -> dict[str, Any]:
    """Loose segments as one line with gaps."""
    gap = np.full((1, 2), np.nan)
    parts = [np.concatenate([np.asarray(segment, dtype=float), gap]) for segment in collection.get_segments()]
    x, y = (np.concatenate(parts)[:-1] if parts else gap[:0]).T
    colours = collection.get_colors()
    look = _colour(colours[0] if len(colours) else "black", None)
    one = {"type": "line", **_name(collection, owner), "x": _numbers(x), "y": _numbers(y), **look}
    one |= {"width": _round(np.atleast_1d(collection.get_linewidths())[0])}
    return one | ({"aside": "errors", "legend": False} if owner is not None or len(parts) > 1 else {})


def _bands(collection: Any) -> Iterator[dict[str, Any]]:
    face = collection.get_facecolors()
    look = _colour(face[0] if len(face) else "black", None)
    for path in collection.get_paths():
        x, y = np.asarray(path.vertices, dtype=float).T
        yield {"type": "area", **_name(collection), "x": _numbers(x), "y": _numbers(y), **look}


def _area(axes: Axes, patch: Any) -> dict[str, Any]:
    """A patch of any shape; one that spans the axes reaches from limit to limit."""
    outline = patch.get_path().transformed(patch.get_patch_transform()).vertices
    x, y = np.asarray(outline, dtype=float).T
    data = patch.get_data_transform()
    if data == axes.get_yaxis_transform(which="grid"):
        x = np.asarray(axes.get_xlim())[(x > 0.5).astype(int)]
    elif data == axes.get_xaxis_transform(which="grid"):
        y = np.asarray(axes.get_ylim())[(y > 0.5).astype(int)]
    look = _colour(patch.get_facecolor(), None)
    return {"type": "area", **_name(patch), "x": _numbers(x), "y": _numbers(y), **look, "aside": "span"}


def _bars(container: Any) -> dict[str, Any]:
    lying = getattr(container, "orientation", "vertical") == "horizontal"
    along, length = ("y", "width") if lying else ("x", "height")
    thick, base = ("height", "x") if lying else ("width", "y")

    def each(what: str) -> Any:
        return np.array([getattr(bar, f"get_{what}")() for bar in container], dtype=float)

    looks = [_colour(bar.get_facecolor(), None) for bar in container]
    return {
        "type": "bars",
        **_name(container),
        "lying": lying,
        "places": _numbers(each(along) + each(thick) / 2),
        "lengths": _numbers(each(length)),
        "widths": _numbers(each(thick)),
        "base": _numbers(each(base)),
        "colours": [look["colour"] for look in looks],
        **looks[0],
    }


def _image(image: Any) -> dict[str, Any]:
    """A map of cells; rows run up the axis, whichever way the image was given."""
    left, right, bottom, top = (float(end) for end in image.get_extent())
    pixels: Any = np.ma.filled(np.ma.asarray(image.get_array(), dtype=float), np.nan)
    first, last = (top, bottom) if image.origin == "upper" else (bottom, top)
    return {
        "type": "heat",
        **_name(image),
        "size": [int(length) for length in pixels.shape],
        "x": [left, right],
        "y": [min(first, last), max(first, last)],
        "values": _numbers((pixels if first < last else pixels[::-1]).ravel()),
        "scale": _scale(image, ""),
    }


def _scale(mappable: Any, label: str) -> dict[str, Any]:
    """Colours from low to high, by stops; Viridis the scripts know themselves."""
    cmap = mappable.get_cmap()
    stops = (
        None if cmap.name == "viridis" else np.round(cmap(np.linspace(0, 1, 33))[:, :3] * 255).astype(int).tolist()
    )
    low, high = mappable.get_clim()
    return {"low": float(low), "high": float(high), "label": _plain_text(label), "colours": stops}


def _colour_bars(figure: Figure) -> Iterator[tuple[Any, dict[str, Any]]]:
    for axes in figure.axes:
        if _is_colour_bar(axes):
            bar: Any = getattr(axes, "_colorbar")  # noqa: B009
            for parent in bar.ax._colorbar_info["parents"]:
                yield parent, _scale(bar.mappable, axes.get_ylabel())


def _keys(figure: Figure, known: set[Any]) -> Iterator[dict[str, Any]]:
    """What legends explain besides the series themselves: a style that many series share, and their own titles."""
    legends = [*figure.legends, *(axes.get_legend() for axes in figure.axes)]
    for legend in filter(None, legends):
        if legend.get_title().get_text():
            yield {"type": "note", "name": _plain_text(legend.get_title().get_text())}
        handles: list[Any] = legend.legend_handles
        for handle, text in zip(handles, legend.get_texts(), strict=True):
            name = _plain_text(text.get_text())
            if name not in known and hasattr(handle, "get_markerfacecolor"):
                dashed = handle.get_linestyle() not in ("None", "", " ")
                marked = handle.get_marker() not in ("None", None, "", " ")
                yield {"type": "line", "name": name, **_look(handle, dashed, marked)}


def _axis(axes: Axes, which: str) -> dict[str, Any]:
    getter = axes.xaxis if which == "x" else axes.yaxis
    low, high = (float(limit) for limit in (axes.get_xlim() if which == "x" else axes.get_ylim()))
    transform: Any = getter.get_transform()
    axis: dict[str, Any] = {"label": _plain_text(getter.get_label_text()), "range": [low, high]}
    if getter.get_scale() == "log":
        axis["log"] = True
    elif getter.get_scale() == "symlog":
        axis["linear"] = float(transform.linthresh)
    if getattr(getter.get_major_locator(), "_integer", False):
        axis["whole"] = True
    labels = [tick.get_text() for tick in getter.get_ticklabels()]
    places = [float(place) for place in getter.get_ticklocs()]
    words = len(labels) == len(places) and any(label and not _is_number(label) for label in labels)
    # Words on an axis (names of masks, say) and ticks set by hand are carried over; the page writes plain numbers.
    if words or type(getter.get_major_locator()).__name__ == "FixedLocator":
        axis |= {"ticks": [[place, _plain_text(label)] for place, label in zip(places, labels, strict=True) if label]}
        axis |= {"words": True} if words else {}
    elif axis.get("log") and transform.base != 10:
        axis["ticks"] = [[place, f"{place:g}"] for place in places if low <= place <= high]
    return axis


def _texts(axes: Axes) -> Iterator[dict[str, Any]]:
    from matplotlib.text import Annotation

    for text in axes.texts:
        x, y = text.get_position()
        off = None
        if isinstance(text, Annotation):
            if text.anncoords == "offset points":
                off = [_round(float(part)) for part in text.xyann]
            x, y = text.xy
        inside = text.get_transform() == axes.transAxes
        if text.get_text() and (inside or isinstance(text, Annotation) or text.get_transform() == axes.transData):
            yield {
                "text": _plain_text(text.get_text()),
                "x": float(x),
                "y": float(y),
                "anchor": ANCHORS[str(text.get_horizontalalignment())],
                "sinks": SINKS.get(str(text.get_verticalalignment()), 0),
                **_colour(text.get_color(), None),
                **({"off": off} if off else {}),
                **({"inside": True} if inside else {}),
            }


def _name(artist: Any, owner: Any = None) -> dict[str, Any]:
    """What a series is called, and whether the legend has it.

    Matplotlib marks series without a legend entry by a leading underscore. A `gid` names the entry that switches such
    a series, whose own label, less the underscore, then says what it is.
    """
    text = str((artist if owner is None else owner).get_label())
    group = getattr(artist, "get_gid", lambda: None)()
    if owner is not None:
        return {"name": _plain_text(text), "legend": artist is owner.lines[0]}
    if group is not None:
        return {"group": _plain_text(group), "name": _plain_text(text.removeprefix("_")), "legend": False}
    hidden = not text or text.startswith("_")
    return {"name": "" if hidden else _plain_text(text), "legend": not hidden}


def _colour(colour: Any, alpha: float | None) -> dict[str, Any]:
    """Black and grey are shades of the page's own ink, so that they are seen on a dark page too."""
    from matplotlib.colors import to_hex, to_rgba

    red, green, blue, opacity = to_rgba(colour, alpha)
    if max(red, green, blue) - min(red, green, blue) < 0.01:
        # What is nearly white is an area behind the curves, and must stay faint.
        return {"colour": "currentColor", "opacity": round(opacity * max(1 - red, 0.05), 3)}
    return {"colour": to_hex((red, green, blue)), **({"opacity": round(opacity, 3)} if opacity < 1 else {})}


def _numbers(values: Any) -> list[float | None]:
    """Plain floats; what is not finite becomes a gap. Seven digits are more than a screen can show."""
    return [float(f"{value:.7g}") if np.isfinite(value) else None for value in np.asarray(values, dtype=float)]


def _round(points: float) -> float:
    """A length in print as dots of the screen."""
    return round(float(points) * DOTS_PER_POINT, 2)


def _plain_text(text: str) -> str:
    """Matplotlib's dollar signs mean nothing to a browser."""
    literal = "\0"
    plain = text.replace("\n", " ").replace(r"\$", literal)
    if plain.count("$") >= 2:
        for name, letter in GREEK.items():
            plain = plain.replace(f"\\{name}", letter)
        plain = re.sub(r"_\{?(\d)\}?", lambda found: chr(0x2080 + int(found[1])), plain)
        for sign in ("$", "\\mathrm", "{", "}"):
            plain = plain.replace(sign, "")
        plain = plain.replace("\\log", "log")
    return plain.replace(literal, "$")


def _is_number(label: str) -> bool:
    """Numbers as Matplotlib writes them: plain, with a true minus sign, or set in its own mathematics."""
    if label.startswith("$\\mathdefault"):
        return True
    try:
        float(label.replace("\u2212", "-").replace(",", ""))
    except ValueError:
        return False
    return True


def _is_colour_bar(axes: Axes) -> bool:
    return hasattr(axes, "_colorbar")
