"""A figure in the house style, and how it is written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rankfall.destinations import make_parents, require_writable_file
from rankfall.errors import printable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's eight colours, which people with any colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#8A7F00")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
FORMATS = (".png", ".svg", ".pdf")

STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 150,
    "svg.hashsalt": "rankfall",
}


def canvas(
    rows: int = 1, columns: int = 1, *, size: tuple[float, float] = (5.2, 3.6), **options: Any
) -> tuple[Figure, Any]:
    """A figure and its axes (always a 2-D array of them); `size` is that of one panel, in inches."""
    from cycler import cycler
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.style import context

    with context({**STYLE, "axes.prop_cycle": cycler(color=COLOURS)}):
        figure = Figure(figsize=(size[0] * columns, size[1] * rows))
        FigureCanvasAgg(figure)
        axes = figure.subplots(rows, columns, squeeze=False, **options)
    return figure, axes


def literal(text: str) -> str:
    """A name or title as it stands: a dollar sign in it begins no formula."""
    return printable(text).replace("$", r"\$")


def heading(figure: Figure, text: str) -> None:
    """The title above all panels; names of models stand in it."""
    figure.suptitle(literal(text))


def whole_ticks(*axes: Any) -> None:
    """Ticks at whole numbers alone, as of layers and heads."""
    for axis in axes:
        axis.get_major_locator().set_params(integer=True)


def settle(figure: Figure) -> None:
    """Keep the layout of a figure that was drawn: each format would compute it anew, which takes most of the time."""
    figure.set_layout_engine("none")


def save(figure: Figure, path: Path) -> Path:
    """Write the figure in the format that the file's ending names."""
    from matplotlib.layout_engine import PlaceHolderLayoutEngine
    from matplotlib.style import context

    make_parents(require_writable_file(path, "a picture", FORMATS))
    metadata = {"Date": None} if path.suffix == ".svg" else None
    with context(STYLE):
        if isinstance(figure.get_layout_engine(), PlaceHolderLayoutEngine):  # as `settle` leaves it
            _write_as_laid_out(figure, path, metadata)
        else:
            figure.savefig(path, metadata=metadata)
    return path


def _write_as_laid_out(figure: Figure, path: Path, metadata: dict[str, Any] | None) -> None:
    """What `savefig` writes, without its first round: that draws the figure only to lay it out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_pdf import FigureCanvasPdf
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    kinds: dict[str, Any] = {".png": FigureCanvasAgg, ".svg": FigureCanvasSVG, ".pdf": FigureCanvasPdf}
    own, dpi = figure.canvas, figure.dpi
    try:
        figure.dpi = STYLE["savefig.dpi"]
        getattr(kinds[path.suffix](figure), f"print_{path.suffix[1:]}")(path, metadata=metadata)
    finally:
        figure.set_canvas(own)
        figure.dpi = dpi
