"""Monitors that tests of another file left behind say that they were never entered when they are freed: before, not
during tests that count warnings."""

from __future__ import annotations

import gc
import warnings

import pytest


@pytest.fixture(autouse=True, scope="module")
def _nothing_left_to_free(request: pytest.FixtureRequest) -> None:
    if request.path.name.startswith("test_monitor"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            gc.collect()
