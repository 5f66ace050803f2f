"""The page in a real browser: opens from disk with the network off, draws, toggles, sorts, and harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankfall.report import write
from tests.browser import browser
from tests.report.sample import HOSTILE, sample


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[Any]:
    path: Path = write(sample(), tmp_path_factory.mktemp("report"))
    with browser() as chromium:
        context = chromium.new_context(offline=True, viewport={"width": 1100, "height": 900})
        tab = context.new_page()
        tab.asked = []
        tab.complaints = []
        tab.on("request", lambda request: tab.asked.append(request.url))
        tab.on("pageerror", lambda error: tab.complaints.append(str(error)))
        tab.goto(path.as_uri())
        tab.wait_for_selector(".plot[data-drawn=yes]")
        yield tab


def test_page(page) -> None:
    """One visit, in the order of a reader: a browser is too slow to start for each question."""
    assert page.asked == [page.url]

    for place in page.query_selector_all(".plot"):
        place.scroll_into_view_if_needed()
        page.wait_for_function("place => place.dataset.drawn === 'yes'", arg=place)
        assert place.query_selector_all(".trace, .heatmaplayer image, .bars path")

    assert page.evaluate("window.harmed") is None
    assert page.inner_text("h1") == f"Audit of {HOSTILE}"
    assert HOSTILE in page.inner_text(".answer li")

    plot = "document.querySelector('.plot[data-name=depth]')"
    assert page.evaluate(f"{plot}._fullLayout.yaxis.type") == "log"
    page.click("#picture-depth button.scale[data-axis=y]")
    page.wait_for_function(f"{plot}._fullLayout.yaxis.type === 'linear'")

    shown = page.evaluate(f"{plot}.data.filter(trace => trace.visible !== 'legendonly').length")
    page.evaluate(f"Plotly.restyle({plot}, {{visible: 'legendonly'}}, [0])")
    assert page.evaluate(f"{plot}.data.filter(trace => trace.visible !== 'legendonly').length") == shown - 1

    first_cell = "#grid-layers tbody tr:first-child td"
    page.click("#grid-layers th:first-child")
    assert page.inner_text(first_cell) == "9"
    page.click("#grid-layers th:first-child")
    assert page.inner_text(first_cell) == "100"

    page.click("#grid-layers .define")
    assert page.inner_text("#definition") == "distance from all tokens being equal"

    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before

    page.set_viewport_size({"width": 380, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")

    assert page.asked == [page.url]
    assert page.complaints == []
