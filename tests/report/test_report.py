"""The report as files: everything written, nothing unescaped, the interactive figure the same as the drawn one."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from plotly.offline import get_plotlyjs

from rankfall.drawing.canvas import canvas, save
from rankfall.errors import RequestError
from rankfall.report.document import Document, Grid, Section
from rankfall.report.interactive import interactive
from rankfall.report.page import coded, embedded, render, write
from tests.report.sample import HOSTILE, sample


def test_every_file_is_written(tmp_path: Path) -> None:
    page = write(sample(), tmp_path)
    assert page == tmp_path / "report.html"
    expected = {"report.html", "layers.csv", "layers.parquet"}
    expected |= {f"{name}.{ending}" for name in ("depth", "bars") for ending in ("png", "svg", "pdf")}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert page.stat().st_size < 8e6
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "layers.parquet"), sample().grids()[0].table)


def test_nothing_hostile_reaches_the_page_as_markup() -> None:
    page = render(sample())
    assert HOSTILE not in page
    assert "<img" not in page.replace("&lt;img", "")[: page.index("plotly.js")]
    assert "&lt;script&gt;window.harmed" in page


def test_page_names_no_other_address() -> None:
    page = render(sample())
    head = page[: page.index('<script type="application/json"')]
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", head)
    assert "default-src 'none'" in head


def test_words_in_backquotes_are_code() -> None:
    assert coded("type `a <b>` & go") == "type <code>a &lt;b&gt;</code> &amp; go"
    assert coded("one ` alone") == "one ` alone"


def test_embedded_data_cannot_close_its_element() -> None:
    text = embedded({"a": "</script><!-- &"})
    assert "<" not in text
    assert ">" not in text
    assert json.loads(text) == {"a": "</script><!-- &"}


def test_the_page_grows_with_what_is_seen_not_with_what_was_measured() -> None:
    """A report is the plotting library, once, and its own parts; of a long table a page shows the first rows."""
    library = len(get_plotlyjs())
    assert library < 6e6
    long = pd.DataFrame({"layer": np.arange(100_000), "mu": np.linspace(0, 1, 100_000)})
    document = Document("t", "s", [], [Section("s", [], [Grid("long", "long", long)])], "c", {})
    assert len(render(document)) - library < 100_000
    figure, axes = canvas()
    axes[0, 0].imshow(np.random.default_rng(0).random((128, 128)))
    figure.canvas.draw()
    # A map of 128 by 128 cells: not more than a dozen letters for each.
    assert len(embedded(interactive(figure))) < 12 * 128 * 128


def test_lines_keep_their_numbers_names_and_scales() -> None:
    figure, axes = canvas()
    axes[0, 0].loglog([1, 10, 100], [1.0, 0.1, np.nan], label="falls", linestyle="--", marker="s", color="#D55E00")
    axes[0, 0].plot([1, 2], [1, 1], label="_hidden")
    figure.canvas.draw()
    plot = interactive(figure)
    first, second = plot["data"]
    assert (first["x"], first["y"]) == ([1.0, 10.0, 100.0], [1.0, 0.1, None])
    assert first["name"] == "falls"
    assert (first["line"]["dash"], first["marker"]["symbol"], first["line"]["color"]) == ("dash", "square", "#d55e00")
    assert second["showlegend"] is False
    assert plot["layout"]["xaxis"]["type"] == plot["layout"]["yaxis"]["type"] == "log"


def test_panels_share_one_legend_entry_and_have_places() -> None:
    figure, axes = canvas(1, 2)
    for panel in axes[0]:
        panel.plot([0, 1], [0, 1], label="same")
    figure.canvas.draw()
    plot = interactive(figure)
    assert [trace["showlegend"] for trace in plot["data"]] == [True, False]
    left, right = plot["layout"]["xaxis"]["domain"], plot["layout"]["xaxis2"]["domain"]
    assert (left[0], right[1]) == (0.0, 1.0)
    assert left[1] <= right[0]


def test_bars_bands_points_and_images() -> None:
    figure, axes = canvas(1, 2)
    axes[0, 0].bar(["a", "b"], [1, 2])
    axes[0, 0].scatter([0.5], [1.5])
    axes[0, 0].fill_between([0, 1], [0, 0], [1, 1])
    axes[0, 1].imshow([[1.0, 2.0], [3.0, 4.0]])
    figure.canvas.draw()
    kinds = {trace["type"]: trace for trace in interactive(figure)["data"]}
    assert kinds["bar"]["y"] == [1.0, 2.0]
    assert interactive(figure)["layout"]["xaxis"]["ticktext"] == ["a", "b"]
    # The first row of an image is at the top; Plotly counts from the bottom of the axis.
    assert kinds["heatmap"]["z"] == [[3.0, 4.0], [1.0, 2.0]]


def test_plain_numbers_on_axes_are_left_to_the_page() -> None:
    figure, axes = canvas()
    axes[0, 0].semilogy([1, 2, 3], [1e-3, 1e-6, 1e-9])
    figure.canvas.draw()
    assert "ticktext" not in interactive(figure)["layout"]["yaxis"]


@pytest.mark.parametrize("names", [["a", "a"], ["../evil"], ["Bad Name"]])
def test_unsafe_or_repeated_names_are_refused(names: list[str], tmp_path: Path) -> None:
    grids = [Grid(name, name, pd.DataFrame({"x": [1]})) for name in names]
    document = Document("t", "s", [], [Section("s", [], grids)], "c", {})
    with pytest.raises(RequestError, match="distinct names in small letters"):
        write(document, tmp_path)


def test_picture_format_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"one of .png, .svg, .pdf; got"):
        save(canvas()[0], tmp_path / "x.bmp")
