"""The page in a real browser: sliders move the curves, a link restores them, and nobody else is asked."""

from __future__ import annotations

import re
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
from rankfall.store.results import import_results
from rankfall.store.store import Store
from tests.browser import browser
from tests.explorer.test_stored import RESULTS, write_audit

# A loaded machine starts a browser slowly; nothing here waits when it need not.
PATIENCE = 120_000
# Modules that the page's process imports; a folder of reports may hold files of these names.
CANARIES = ("marimo", "uvicorn", "pandas", "scipy", "pyarrow", "duckdb", "sitecustomize")
HOSTILE = "<img src=x onerror='window.harmed=1'>"
STATE = TokenState(mask="window:3", tokens=12, width=8, depth=20)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    folder: Path = tmp_path_factory.mktemp("stored")
    import_results(Store(folder / "runs", create=True), RESULTS)
    write_audit(folder / "reports" / "small", [9.0, 4.0, 2.0])
    for name in CANARIES:
        (folder / f"{name}.py").write_text(f"open({str(folder / 'ran')!r}, 'a').write({name!r})\nraise ImportError")
    (folder / ".marimo.toml").write_text(f"[runtime]\npythonpath = [{str(folder)!r}]\n")
    with pytest.MonkeyPatch.context() as moved:
        moved.chdir(folder)
        with serve(0, Path("runs"), Path("reports")) as running:
            yield running
    assert not (folder / "ran").exists(), "code from the working folder ran"


def test_nothing_in_the_working_folder_runs(served: Served) -> None:
    assert served.process.poll() is None
    assert not Path("ran").exists()


DRAWN = """plot => {
  const series = plot.plot?.panels?.[0].series[0];
  const path = plot.shadowRoot?.querySelector("path[data-name]")?.getAttribute("d");
  return series && path ? { y: series.y, name: series.name, path } : null;
}"""


def curve(page: Any, which: int) -> dict[str, Any] | None:
    """The first curve of the plot at that place, and the path that draws it; None while there is none."""
    plots = page.locator("rankfall-plot")
    return plots.nth(which).evaluate(DRAWN) if plots.count() > which else None


def wait_for_curve(page: Any, which: int, wanted: list[float]) -> None:
    """Until the plot at that place shows these values."""
    for _ in range(PATIENCE // 100):
        drawn = curve(page, which)
        if drawn is not None and drawn["y"] == pytest.approx(wanted, abs=1e-9):
            assert heights(drawn["path"]) == pytest.approx(heights_of(wanted, drawn["path"]), abs=0.02)
            return
        page.wait_for_timeout(100)
    raise AssertionError(f"plot {which} never showed {wanted[:3]} ...; the address was {page.url}")


def heights(path: str) -> list[float]:
    """The screen's y of every point of a path, which counts from the top."""
    return [float(point.split(" ")[1]) for point in re.split("[ML]", path)[1:]]


def heights_of(values: list[float], path: str) -> list[float]:
    """Where the values must stand on a straight axis, if the first and the lowest are where they were drawn."""
    drawn, lowest = heights(path), min(range(len(values)), key=lambda k: values[k])
    scale = (drawn[lowest] - drawn[0]) / (values[lowest] - values[0])
    return [drawn[0] + scale * (value - values[0]) for value in values]


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
        page.locator("rankfall-plot").nth(3).wait_for()
        page.get_by_text(f"norm={HOSTILE}: not possible here").wait_for()
        assert page.evaluate("window.harmed") is None

        slider = page.locator("marimo-slider", has_text="tokens N").get_by_role("slider")
        slider.focus()
        page.keyboard.press("ArrowRight")
        longer = replace(STATE, tokens=13)
        wait_for_curve(page, 1, list(token_curves(longer).log10_mu))
        page.wait_for_url("**tokens=13**")
        assert from_query(query_of(page.url))[0].token == longer

        motion = page.locator("rankfall-plot").nth(0)
        assert motion.evaluate("plot => plot.plot.layers.length") == 21
        picture = "plot => plot.shadowRoot.querySelector('canvas').toDataURL()"
        before = motion.evaluate(picture)
        motion.get_by_role("button", name="play").click()
        motion.get_by_text("layer 20", exact=True).wait_for()
        assert motion.evaluate(picture) != before
        motion.get_by_role("slider").fill("0")
        assert motion.evaluate(picture) == before

        depth = page.locator("rankfall-plot").nth(1)
        depth.get_by_role("button", name="theorem's bound").click()
        shown = "plot => [...plot.shadowRoot.querySelectorAll('path[data-name]')].map(path => path.dataset.name)"
        assert "theorem's bound" not in depth.evaluate(shown)
        depth.get_by_role("img").focus()
        page.keyboard.press("ArrowRight")
        depth.get_by_text("layer 0", exact=True).wait_for()

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
        cells = page.locator("rankfall-plot td:first-child")
        usual = cells.all_inner_texts()
        page.get_by_role("button", name="heads", exact=True).click()
        assert cells.all_inner_texts() == sorted(usual, key=int)

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
