"""The page in a real browser: sliders move the curves, a link restores them, and nobody else is asked."""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("marimo", reason="the extra app is not installed")

from rankfall.explorer.head_curves import head_curves
from rankfall.explorer.server import HOST, Served, serve
from rankfall.explorer.state import HeadState, PageState, TokenState, from_query, query_of, to_query
from rankfall.explorer.token_curves import token_curves
from rankfall.runs import Store, import_results
from tests.browser import browser
from tests.explorer.test_stored import RESULTS, write_audit

# A loaded machine starts a browser slowly; nothing here waits when it need not.
PATIENCE = 120_000
HOSTILE = "<img src=x onerror='window.harmed=1'>"
STATE = TokenState(mask="window:3", tokens=12, width=8, depth=20)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("stored")
    import_results(Store(folder / "runs", create=True), RESULTS)
    write_audit(folder / "reports" / "small", [9.0, 4.0, 2.0])
    with serve(0, folder / "runs", folder / "reports") as running:
        yield running


def curves(page: Any, trace: int = 0) -> list[list[float]]:
    """That curve of every plot on the page, as it is drawn now; empty while a plot is still being made.

    Marimo's widgets live in shadow trees, which only locators reach into.
    """
    read = f"plots => plots.map(plot => [...(plot.data?.[{trace}]?.y ?? [])])"
    return page.locator(".js-plotly-plot").evaluate_all(read)


def wait_for_curve(page: Any, which: int, wanted: list[float]) -> None:
    """Until the plot at that place shows these values."""
    for _ in range(PATIENCE // 100):
        drawn = curves(page)
        if len(drawn) > which and drawn[which] == pytest.approx(wanted, abs=1e-9):
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"plot {which} never showed {wanted[:3]} ...; the address was {page.url}")


def test_without_the_token_nothing_is_served(served) -> None:
    with urllib.request.urlopen(f"http://{HOST}:{served.port}/") as answer:
        assert "/auth/login" in answer.url
        assert b"marimo-user-config" not in answer.read()
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{HOST}:{served.port}/api/status")
    assert refused.value.code == 401
    refused.value.close()


def test_page(served) -> None:
    """One visit, in the order of a reader: a browser is too slow to start for each question."""
    with browser() as chromium:
        context = chromium.new_context(viewport={"width": 1300, "height": 1400})
        context.set_default_timeout(PATIENCE)
        asked: list[str] = []
        complaints: list[str] = []
        context.on("request", lambda request: asked.append(request.url))
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))

        page.goto(served.link({**to_query(PageState(token=STATE)), "norm": HOSTILE}))
        wait_for_curve(page, 1, list(token_curves(STATE).log10_mu))
        page.locator(".js-plotly-plot").nth(3).wait_for()
        page.get_by_text(f"norm={HOSTILE}: not possible here").wait_for()
        assert page.evaluate("window.harmed") is None

        slider = page.locator("marimo-slider", has_text="tokens N").get_by_role("slider")
        slider.focus()
        page.keyboard.press("ArrowRight")
        longer = replace(STATE, tokens=13)
        wait_for_curve(page, 1, list(token_curves(longer).log10_mu))
        page.wait_for_url("**tokens=13**")
        assert from_query(query_of(page.url))[0].token == longer

        motion = page.locator(".js-plotly-plot").nth(0)
        assert motion.evaluate("plot => plot._transitionData._frames.length") == 21
        before = motion.evaluate("plot => [...plot._fullData[1].x]")
        motion.locator(".updatemenu-button").first.click()
        page.wait_for_timeout(800)
        assert motion.evaluate("plot => [...plot._fullData[1].x]") != before

        page.get_by_role("button", name="The same result").click()
        page.get_by_text("--tokens 13").locator("visible=true").first.wait_for()

        shared = context.new_page()
        shared.goto(page.url)
        wait_for_curve(shared, 1, list(token_curves(longer).log10_mu))
        shared.close()

        page.get_by_role("tab", name="Head rank").click()
        wait_for_curve(page, 0, list(head_curves(HeadState()).floors))
        page.locator("marimo-slider", has_text="rank r").get_by_role("slider").focus()
        page.keyboard.press("ArrowRight")
        wait_for_curve(page, 0, list(head_curves(HeadState(rank=9)).floors))
        page.wait_for_url("**r=9**")

        page.get_by_role("tab", name="Stored").click()
        wait_for_curve(page, 0, [9.0, 4.0, 2.0])
        page.get_by_text("All have: task farthest").wait_for()
        page.wait_for_url("**tab=Stored**")
        assert from_query(query_of(page.url))[0].tab == "Stored"

        ours = (f"http://{HOST}:{served.port}/", f"ws://{HOST}:{served.port}/", "data:", "blob:")
        assert [url for url in asked if not url.startswith(ours)] == []
        assert len(asked) > 10
        assert complaints == []
        refusal = "fetch('https://example.org/').then(() => 'answered', error => String(error))"
        violation = "new Promise(done => addEventListener('securitypolicyviolation', one => done(one.blockedURI)))"
        blocked = page.evaluate(f"() => {{ const seen = {violation}; {refusal}; return seen; }}")
        assert blocked.startswith("https://example.org")
