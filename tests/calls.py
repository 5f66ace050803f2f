"""Calling the command line as a user does: its exit status and what it printed, or the one object of --json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankfall.cli.main import run

Capture = pytest.CaptureFixture[str]


def call(capture: Capture, *words: object) -> tuple[int, str, str]:
    """Exit status, output and errors of `rankfall` with these words."""
    with pytest.raises(SystemExit) as ended:
        run([str(word) for word in words])
    out, err = capture.readouterr()
    return int(ended.value.code or 0), out, err


def answer(capture: Capture, *words: object) -> dict[str, Any]:
    """The object that a command which succeeds prints with --json: one, on one line."""
    status, out, err = call(capture, *words, "--json")
    assert status == 0, err
    assert out.count("\n") == 1, out
    found: dict[str, Any] = json.loads(out)
    assert found["schema"] == 2
    return found


def refused(capture: Capture, *words: object) -> str:
    """What a request that cannot be met is told: status 2, no output, no traceback; line breaks are spaces."""
    status, out, err = call(capture, *words)
    assert (status, out) == (2, ""), err
    assert "Traceback" not in err
    return " ".join(err.split())
