"""Size and opening time of an audit's report: SmolLM2 at 512 tokens, opened from disk in a real browser.

The clock starts with the navigation and stops in the frame after the last plot of the report is drawn; the text can
be read before. Each opening has a browser context of its own, so that nothing is cached but what the system keeps of
the file. A folder given as argument is taken as the report, instead of making one.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks._browser import chromium, quantiles
from benchmarks._harness import report

MODEL, TOKENS = "smollm2", 512
LARGEST_BYTES, SLOWEST_S = 1_500_000, 1.5
OPENINGS = 7
SCREEN = {"width": 1300, "height": 900}
PROBE = """
window.drawnAt = new Map();
new MutationObserver((changes) => {
  for (const { target } of changes) {
    requestAnimationFrame(() => { if (!drawnAt.has(target)) drawnAt.set(target, performance.now()); });
  }
}).observe(document, { subtree: true, attributes: true, attributeFilter: ["data-drawn"] });
"""
READ = """() => {
  const plots = [...document.querySelectorAll(".plot")];
  if (!plots.every((plot) => drawnAt.has(plot))) return null;
  const every = Math.max(...plots.map((plot) => drawnAt.get(plot))) / 1000;
  const scripts = performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd / 1000;
  return { plots: plots.length, readable: scripts, every };
}"""


def main() -> None:
    given = sys.argv[1:]
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given[0]) if given else made(Path(temporary))
        report("report", [measured(folder / "report.html")])


def made(folder: Path) -> Path:
    """The report, by the command that a user types."""
    words = ["audit", MODEL, "--tokens", str(TOKENS), "--out", str(folder)]
    subprocess.run([sys.executable, "-m", "rankfall", *words], check=True, stdout=subprocess.DEVNULL)
    return folder


def measured(page: Path) -> dict[str, Any]:
    """The file's size, and medians over openings."""
    size = page.stat().st_size
    openings = []
    with chromium() as browser:
        for _ in range(OPENINGS):
            context = browser.new_context(viewport=SCREEN, offline=True)
            tab = context.new_page()
            tab.add_init_script(PROBE)
            tab.goto(page.resolve().as_uri())
            tab.wait_for_selector(".plot:not([data-drawn=yes])", state="detached")
            # The page forbids evaluation of text, which Playwright's own waiting needs.
            while (opened := tab.evaluate(READ)) is None:
                tab.wait_for_timeout(50)
            openings.append(opened)
            context.close()
    every = quantiles([one["every"] for one in openings])
    return {
        "model": MODEL,
        "tokens": TOKENS,
        "bytes": size,
        "plots": openings[0]["plots"],
        "text_and_scripts_s": quantiles([one["readable"] for one in openings])["median_s"],
        "every_plot_s": every["median_s"],
        "every_plot_slowest_s": every["largest_s"],
        "within": size < LARGEST_BYTES and every["largest_s"] < SLOWEST_S,
    }


if __name__ == "__main__":
    main()
