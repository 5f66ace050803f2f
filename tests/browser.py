"""A real browser, where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from benchmarks._browser import started


@contextmanager
def browser() -> Iterator[Any]:
    """A headless Chromium; the test is skipped by name where none can be had."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        try:
            found = started(driver)
        except playwright.Error as error:
            pytest.skip(f"no browser to be had: {str(error).splitlines()[0]}")
        yield found
        found.close()
