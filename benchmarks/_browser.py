"""The browser that pages are timed in: headless Chromium, which draws in software, on the same machine."""

from __future__ import annotations

import shutil
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


@contextmanager
def chromium() -> Iterator[Any]:
    """Chromium on the PATH, else Playwright's own."""
    from playwright.sync_api import sync_playwright

    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=path, args=QUIET)
        try:
            yield started
        finally:
            started.close()


def quantiles(values: list[float]) -> dict[str, float]:
    """Median, 90th percentile (the nearest rank) and largest."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {"median_s": median, "p90_s": ordered[-(-9 * len(ordered) // 10) - 1], "largest_s": ordered[-1]}
