"""Run a shown command or a shown script and take what it prints; read what a plot holds."""

from __future__ import annotations

import base64
import contextlib
import io
import shlex
from typing import Any

import pytest
import torch

from tests.calls import answer


def printed_by_command(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON object of the command with --json."""
    program, *words = shlex.split(command)
    assert program == "rankfall"
    return answer(capsys, *words)


def printed_by_python(script: str) -> list[list[str]]:
    """The words of every line that the script prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(script, "shown", "exec"), {})
    return [line.split() for line in out.getvalue().splitlines()]


def series_of(plot: dict[str, Any]) -> list[dict[str, Any]]:
    """All curves of a plot, panel by panel."""
    return [series for panel in plot["panels"] for series in panel["series"]]


def unpacked(letters: str, kind: torch.dtype) -> torch.Tensor:
    """The whole numbers that the browser reads."""
    return torch.frombuffer(bytearray(base64.b64decode(letters)), dtype=kind)
