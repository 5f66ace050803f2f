"""Run a shown command or a shown script, and take what it prints."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
from typing import Any

import pytest

from rankfall.cli.main import run


def printed_by_command(command: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The JSON object of the command with --json."""
    program, *words = shlex.split(command)
    assert program == "rankfall"
    with pytest.raises(SystemExit) as ended:
        run([*words, "--json"])
    captured = capsys.readouterr()
    assert ended.value.code == 0, captured.err
    return json.loads(captured.out)


def printed_by_python(script: str) -> list[list[str]]:
    """The words of every line that the script prints."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(script, "shown", "exec"), {})
    return [line.split() for line in out.getvalue().splitlines()]
