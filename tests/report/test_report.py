"""The report as files: everything written, nothing unescaped, the interactive figure the same as the drawn one."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from rankfall.drawing.canvas import canvas, save
from rankfall.drawing.from_matplotlib import plot_of
from rankfall.drawing.plots import PANEL_SCRIPTS, element, scripts
from rankfall.errors import CONTROLS, RequestError
from rankfall.report.document import Document, Grid, Section
from rankfall.report.page import coded, render, write
from tests.report.sample import HOSTILE, sample


def test_every_file_is_written(tmp_path: Path) -> None:
    page = write(sample(), tmp_path)
    assert page == tmp_path / "report.html"
    expected = {"report.html", "layers.csv", "layers.parquet"}
    expected |= {f"{name}.{ending}" for name in ("depth", "bars") for ending in ("png", "svg", "pdf")}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert page.stat().st_size < 100_000
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "layers.parquet"), sample().grids()[0].table)


def test_nothing_hostile_reaches_the_page_as_markup() -> None:
    page = render(sample())
    assert HOSTILE not in page
    assert "<img" not in page
    assert "&lt;script&gt;window.harmed" in page


def test_page_names_no_other_address() -> None:
    page = render(sample())
    assert not re.search(r"""(src|href)=["']?(https?:)?//""", page)
    # The name of a vocabulary, which nothing fetches.
    assert set(re.findall(r"https?://[^\"'\s<&]+", page)) == {"http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page


def test_words_in_backquotes_are_code() -> None:
    assert coded("type `a <b>` & go") == "type <code>a &lt;b&gt;</code> &amp; go"
    assert coded("one ` alone") == "one ` alone"


def test_the_page_grows_with_what_is_seen_not_with_what_was_measured() -> None:
    """A report is the scripts, once, and its own parts; of a long table a page shows the first rows."""
    library = len(scripts(PANEL_SCRIPTS))
    assert library < 50_000
    long = pd.DataFrame({"layer": np.arange(100_000), "mu": np.linspace(0, 1, 100_000)})
    document = Document("t", "s", [], [Section("s", [], [Grid("long", "long", long)])], "c", {})
    assert len(render(document)) - library < 100_000
    figure, axes = canvas()
    axes[0, 0].imshow(np.random.default_rng(0).random((128, 128)))
    # A map of 128 by 128 cells: not more than a dozen letters for each.
    assert len(element(plot_of(figure, "map", "a map"))) < 12 * 128 * 128


@pytest.mark.parametrize("names", [["a", "a"], ["../evil"], ["Bad Name"]])
def test_unsafe_or_repeated_names_are_refused(names: list[str], tmp_path: Path) -> None:
    grids = [Grid(name, name, pd.DataFrame({"x": [1]})) for name in names]
    document = Document("t", "s", [], [Section("s", [], grids)], "c", {})
    with pytest.raises(RequestError, match="distinct names in small letters"):
        write(document, tmp_path)


def test_picture_format_must_be_known(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match=r"one of .png, .svg, .pdf; got"):
        save(canvas()[0], tmp_path / "x.bmp")


def test_a_page_holds_nothing_that_controls_a_terminal_or_turns_a_line_round() -> None:
    escape = "\x1b[2J\x9b31m\u202e\u2066name"
    document = replace(sample(), title=escape, command=f"rankfall audit {escape}")
    page = render(document)
    assert "[2J31mname" in page
    assert set(CONTROLS.findall(page)) <= {"\n", "\t"}
