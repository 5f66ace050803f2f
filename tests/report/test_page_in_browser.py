"""The page in a real browser: opens from disk with the network off, draws, toggles, sorts, and harms nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from rankfall.report.page import write
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

    # Nobody has scrolled: what is below the screen is drawn all the same, only later.
    assert page.evaluate("scrollY") == 0
    page.wait_for_selector(".plot:not([data-drawn=yes])", state="detached")
    for place in page.query_selector_all(".plot"):
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

    with page.expect_download() as download:
        page.click("#picture-depth button.data")
    numbers = pd.read_csv(download.value.path())
    causal = numbers[numbers["series"] == "causal"]
    assert causal["y"].tolist() == pytest.approx(np.exp(-np.arange(1, 30) / 3), rel=1e-6)
    assert HOSTILE in set(numbers["series"])

    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert dark != before

    seen = "[...document.querySelectorAll('.plot svg')].map(svg => svg.clientWidth)"
    theme = "document.documentElement.dataset.theme"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = [...{seen}, {theme}]; }})")
    assert page.pdf(format="A4").startswith(b"%PDF")
    *widths, theme = page.evaluate("window.printed")
    assert theme == "light"
    # 21 cm of paper less its margins, at 96 dots an inch.
    assert 300 < max(widths) <= 21 / 2.54 * 96
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark

    page.set_viewport_size({"width": 380, "height": 800})
    page.wait_for_function("document.documentElement.scrollWidth <= 390")

    assert page.asked == [page.url]
    assert page.complaints == []
