"""The page in a real browser: opens from disk with the network off, draws, toggles, sorts, and harms nobody."""

from __future__ import annotations

import re
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
        tab.on("console", lambda message: tab.complaints.append(message.text))
        tab.goto(path.as_uri())
        tab.wait_for_selector(".plot[data-drawn=yes]")
        yield tab


def bends(curve: Any) -> float:
    """By how many dots of the screen the middle of a path is away from the straight line between its ends."""
    points = [point.split(" ") for point in re.split("[ML]", curve.get_attribute("d"))[1:]]
    heights = [float(y) for _, y in points]
    return abs(heights[len(heights) // 2] - (heights[0] + heights[-1]) / 2)


def test_page(page) -> None:
    """One visit, in the order of a reader: a browser is too slow to start for each question."""
    assert page.asked == [page.url]

    # Nobody has scrolled: what is below the screen is drawn all the same, only later.
    assert page.evaluate("scrollY") == 0
    page.wait_for_selector(".plot:not([data-drawn=yes])", state="detached")
    for place in page.query_selector_all(".plot"):
        assert place.query_selector_all("path[data-name], path[data-dots], image.heat, rect")
    # Two curves, a band and a line across in one panel, a map in the other.
    left = "#picture-depth svg g[clip-path='url(#panel-0)']"
    assert page.locator(f"{left} path[data-name]").count() == 2
    assert page.locator("#picture-depth image.heat").count() == 1
    assert page.locator("#picture-bars svg[role=img] rect[fill]").count() == 2

    assert page.evaluate("window.harmed") is None
    assert page.inner_text("h1") == f"Audit of {HOSTILE}"
    assert HOSTILE in page.inner_text(".answer li")

    # Points of a falling exponential lie on a straight line while the axis is logarithmic.
    depth = page.locator(".plot[data-name=depth]")
    curve = depth.locator("path[data-name=causal]")
    assert bends(curve) < 0.02
    page.click("#picture-depth button.scale[data-axis=y]")
    assert bends(curve) > 1
    page.click("#picture-depth button.scale[data-axis=y]")
    assert bends(curve) < 0.02

    for _ in range(2):
        page.click("#picture-depth button.scale[data-axis=x]")

    depth.get_by_role("button", name="causal").click()
    assert curve.count() == 0
    assert depth.get_by_role("button", name="causal").get_attribute("aria-pressed") == "false"
    depth.get_by_role("button", name="causal").click()
    assert curve.count() == 1

    # Pointing at a place gives the values there; arrow keys lead to the next.
    frame = depth.locator("svg[role=img]").bounding_box()
    page.mouse.move(frame["x"] + frame["width"] / 4, frame["y"] + frame["height"] / 2)
    said = depth.get_by_role("status").inner_text()
    layer = int(re.match(r"layer (\d+)", said)[1])
    value = float(re.search(r"causal: ([\d.]+)", said)[1])
    assert value == pytest.approx(np.exp(-layer / 3), rel=1e-3)
    # The map is a lower triangle, its first row at the top.
    for down in (0.2, 0.7):
        page.mouse.move(frame["x"] + 0.75 * frame["width"], frame["y"] + frame["height"] * down)
        column, row, cell = map(int, re.findall(r"\d+", depth.get_by_role("status").inner_text()))
        assert cell == (row >= column)
        assert (row > 2) == (down > 0.5)

    # A rectangle drawn with the pointer fills the panel; a double click shows everything again.
    before = curve.get_attribute("d")
    page.mouse.move(frame["x"] + frame["width"] * 0.15, frame["y"] + frame["height"] * 0.2)
    page.mouse.down()
    page.mouse.move(frame["x"] + frame["width"] * 0.3, frame["y"] + frame["height"] * 0.6)
    page.mouse.up()
    assert curve.get_attribute("d") != before
    page.mouse.dblclick(frame["x"] + frame["width"] / 4, frame["y"] + frame["height"] / 2)
    assert curve.get_attribute("d") == before

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

    drawn = "plot.shadowRoot.querySelector('svg[role=img]').clientWidth"
    seen = f"[...document.querySelectorAll('.plot')].map(plot => {drawn})"
    theme = "document.documentElement.dataset.theme"
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = [...{seen}, {theme}]; }})")
    assert page.pdf(format="A4").startswith(b"%PDF")
    *widths, theme = page.evaluate("window.printed")
    assert theme == "light"
    # 21 cm of paper less its margins, at 96 dots an inch.
    assert 300 < max(widths) <= 21 / 2.54 * 96
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == dark

    page.set_viewport_size({"width": 380, "height": 800})
    # Asked again and again from outside: the page's policy forbids what `wait_for_function` evaluates inside it.
    for _ in range(600):
        if page.evaluate("document.documentElement.scrollWidth") <= 390:
            break
        page.wait_for_timeout(100)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    assert page.asked == [page.url]
    assert page.complaints == []
