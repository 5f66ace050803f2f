"""How long the page takes to redraw: from a key pressed on a control to the new plots on the screen, in a browser.

Measured is what a reader waits for. The clock starts when the browser makes the event of the key that moves a slider
or picks from a list. It stops in the first task after the frame in which the last of the tab's changed plots was
drawn: marimo's own waiting, the way to its server and back, the simulation and the drawing are all inside. Server and
browser share the machine. Nothing comes from the page's cache: sliders move on to values not seen before, and lists
are tried with a new seed each time. One change of each control before those that are timed warms both sides up.
"""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from benchmarks._browser import chromium, quantiles
from benchmarks._harness import report
from rankfall.explorer.server import Served, serve
from rankfall.explorer.state import TABS, HeadState, PageState, TokenState, from_query, query_of, to_query
from rankfall.explorer.token_curves import token_curves

ALLOWED = 0.25
CHANGES = 10
# A plot that has not changed for so long will not change any more.
SETTLED_MS = 200
PROBE = """() => {
  window.probe = { start: null, end: null, drawn: 0 };
  const begin = (event) => { if (probe.start === null) probe.start = event.timeStamp; };
  addEventListener("keydown", begin, true);
  addEventListener("rankfall-drawn", () => {
    if (probe.start === null) return;
    probe.drawn += 1;
    requestAnimationFrame(() => {
      const channel = new MessageChannel();
      channel.port1.onmessage = () => { probe.end = performance.now(); };
      channel.port2.postMessage(0);
    });
  }, true);
}"""
USUAL = TokenState(tokens=32, width=16, depth=40)
LARGE = TokenState(mask="window:4", tokens=128, width=64, depth=64)


@final
@dataclass(frozen=True)
class Case:
    """A control, by its label; the key that changes it; and the state from which it is changed."""

    name: str
    control: str
    key: str
    start: PageState
    # Lists have few entries: before each change the seed moves on, so that no state comes twice.
    reseed: bool = False


def main() -> None:
    wanted = sys.argv[1:]
    cases = [case for case in all_cases() if not wanted or any(word in case.name for word in wanted)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        store, reports = stored_results(Path(folder))
        with serve(0, store, reports) as served, chromium() as browser:
            for case in cases:
                rows.append(measured(case, served, browser))
                # As it goes: a run takes six minutes, and what was measured is not lost when it is stopped.
                print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    report("explorer_in_browser", rows)


def all_cases() -> Iterator[Case]:
    """Every control of every tab; those of the simulation at the usual size and at the largest number of tokens."""
    for size, base in (("usual", USUAL), ("large", LARGE)):
        few = base.tokens - CHANGES - 1
        sliders: tuple[tuple[str, str, dict[str, Any]], ...] = (
            ("tokens N", "", {"tokens": few}),
            ("tokens N", "3-D", {"tokens": few, "view": "3-D"}),
            ("width d", "", {"width": base.width - CHANGES - 1}),
            ("depth", "", {"depth": base.depth - CHANGES - 1}),
            ("temperature", "", {"temperature": 1 / 64}),
            ("residual", "", {}),
            ("layer shown", "", {"depth": 40}),
            ("width", "of the window", {"mask": "window:1"}),
        )
        for seed, (control, more, changed) in enumerate(sliders, start=50):
            # A seed of its own for each: what one control has shown is not remembered for the next.
            state = PageState(token=replace(base, seed=seed, **changed))
            yield Case(f"tokens, {size}: {control} {more}".strip(), control, "ArrowRight", state)
        for name in ("norm", "value matrix", "mask", "view"):
            yield Case(f"tokens, {size}: {name}", name, "ArrowDown", PageState(token=base), reseed=True)
    for size, head in (("usual", HeadState()), ("large", HeadState(dim=1024, rank=64, heads=16))):
        yield _head(size, "width d", replace(head, dim=8))
        yield _head(size, "rank r", head)
        yield _head(size, "heads H", replace(head, heads=1))
    yield _head("usual", "layers of the model", HeadState())
    yield _head("usual", "tokens of context", HeadState(context=32))
    for name in ("measure", "tokens as", "error of runs"):
        yield Case(f"stored: {name}", name, "ArrowDown", PageState(tab=TABS[2]))


def _head(size: str, control: str, head: HeadState) -> Case:
    return Case(f"heads, {size}: {control}", control, "ArrowRight", PageState(tab=TABS[1], head=head))


def measured(case: Case, served: Served, browser: Any) -> dict[str, Any]:
    """Changes of one control, each timed by itself."""
    page = browser.new_page(viewport={"width": 1300, "height": 1400})
    page.set_default_timeout(60_000)
    page.goto(served.link(to_query(case.start)))
    page.locator("rankfall-plot").first.wait_for()
    page.wait_for_timeout(800)
    page.evaluate(PROBE)
    if case.reseed:
        page.get_by_role("button", name="More settings").click()
    times, drawn = [], set()
    for attempt in range(1 + CHANGES):
        if case.reseed:
            change(page, "seed", "ArrowRight")
        seconds, plots = change(page, case.control, case.key)
        if attempt > 0:
            times.append(seconds)
            drawn.add(plots)
    check(page)
    page.close()
    result = quantiles(times)
    within = {"median_within": result["median_s"] <= ALLOWED, "p90_within": result["p90_s"] <= ALLOWED}
    return {"control": case.name, "changes": len(times), "plots": max(drawn), **result, **within}


def change(page: Any, control: str, key: str) -> tuple[float, int]:
    """Seconds from the key to the last redraw, and how many plots were redrawn. A list at its end starts again."""
    focus(page, control, key)
    page.evaluate("() => { probe.start = probe.end = null; probe.drawn = 0; }")
    page.keyboard.press(key)
    page.wait_for_function("probe.end !== null", polling=100)
    seen = None
    while seen != (seen := page.evaluate("[probe.end, probe.drawn]")):
        page.wait_for_timeout(SETTLED_MS)
    taken = page.evaluate("[(probe.end - probe.start) / 1000, probe.drawn]")
    return float(taken[0]), int(taken[1])


def focus(page: Any, control: str, key: str) -> None:
    """Put the keyboard on the control. A list that stands at its last entry goes to its first, untimed; so does one
    whose next entry is the counterexample, which exists in two dimensions only: a refusal is no plot."""
    if key == "ArrowRight":
        page.locator("marimo-slider").get_by_text(control, exact=True).locator("visible=true").first.wait_for()
        # The last: a random mask has a seed of its own, which stands above that of the simulation.
        page.locator("marimo-slider", has=page.get_by_text(control, exact=True)).get_by_role("slider").last.focus()
        return
    chosen = page.locator("marimo-dropdown", has=page.get_by_text(control, exact=True)).locator("select")
    following = "list => list.options[list.selectedIndex + 1]?.text ?? 'counterexample'"
    if chosen.evaluate(following) == "counterexample":
        chosen.select_option(index=0)
        page.wait_for_timeout(600)
    chosen.focus()


def check(page: Any) -> None:
    """What is drawn in the end is what the state in the address gives: a fast page that is wrong is no page."""
    state, problems = from_query(query_of(page.url))
    assert not problems
    if state.tab == TABS[0]:
        drawn = page.locator("rankfall-plot").nth(1).evaluate("plot => plot.plot.panels[0].series[0].y")
        wanted = list(token_curves(state.token).log10_mu)
        assert max(abs(a - b) for a, b in zip(drawn, wanted, strict=True)) < 1e-9


def stored_results(folder: Path) -> tuple[Path, Path]:
    """A store with the project's own runs, and two audits of 30 layers."""
    import pandas as pd

    from rankfall.explorer.state import StoredState, controls
    from rankfall.store.results import import_results
    from rankfall.store.store import Store

    import_results(Store(folder / "runs", create=True), Path(__file__).parents[1] / "results" / "amsel-fig1")
    measures = controls(StoredState)["measure"].names  # type: ignore[union-attr]
    for model in ("one", "two"):
        rows = [
            {"layer": layer, "view": view, **{name: 1.0 + len(name) / (layer + len(view)) for name in measures}}
            for layer in range(31)
            for view in ("unit", "raw", "centred")
        ]
        (folder / "reports" / model).mkdir(parents=True)
        pd.DataFrame(rows).to_parquet(folder / "reports" / model / "depth.parquet")
        (folder / "reports" / model / "report.html").write_text("")
    return folder / "runs", folder / "reports"


if __name__ == "__main__":
    main()
