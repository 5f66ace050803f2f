"""A real browser, where there is one: on the PATH, or Playwright's own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

# Without these Chromium looks for its maker's servers as soon as it starts.
QUIET = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium; the test is skipped by name where none can be had."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with playwright.sync_playwright() as driver:
        try:
            started = driver.chromium.launch(executable_path=path, args=QUIET)
        except playwright.Error as error:
            pytest.skip(f"no browser to be had: {str(error).splitlines()[0]}")
        yield started
        started.close()
