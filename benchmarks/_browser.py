"""The browser that pages are timed and tested in: headless Chromium, which draws in software, on the same machine."""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# Without these Chromium looks for its maker's servers as soon as it starts.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def started(driver: Any) -> Any:
    """Chromium on the PATH, else Playwright's own."""
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    return driver.chromium.launch(executable_path=path, args=QUIET)


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser that is closed at the end."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = started(driver)
        try:
            yield browser
        finally:
            browser.close()


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 90th percentile (the nearest rank) and largest."""
    ordered = sorted(values)
    return {
        "median_s": statistics.median(ordered),
        "p90_s": ordered[-(-9 * len(ordered) // 10) - 1],
        "largest_s": ordered[-1],
    }
