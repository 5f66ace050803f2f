"""The command line's contract: one JSON object, one line for a wrong request, an example in every help text."""

from __future__ import annotations

import io
import json
import math
import os
import subprocess
import sys

import pytest
import torch
from rich.console import Console
from tests.calls import call

import rankfall
from rankfall.api.result import plain
from rankfall.catalogue import VERBS
from rankfall.cli import output
from rankfall.cli.output import cell, emit, table
from rankfall.cli.reproduce import _readable


def test_version(capsys) -> None:
    status, out, _ = call(capsys, "--version")
    assert (status, out.strip()) == (0, f"rankfall {rankfall.__version__}")


def test_without_a_verb_shows_the_verbs(capsys) -> None:
    status, out, _ = call(capsys)
    assert status == 0
    assert all(verb in out for verb in VERBS.names)


@pytest.mark.parametrize("verb", VERBS.names)
def test_help_has_an_example_and_json(verb: str, capsys) -> None:
    status, out, _ = call(capsys, verb, "--help")
    assert status == 0
    assert f"rankfall {verb}" in out.split("Example", 1)[1]
    assert "--json" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "No such command 'nothing'; see `rankfall --help`"),
        (["--nothing"], "No such option: --nothing"),
        (["reproduce", "--scale", "huge", "wu/fig1"], "required scale to be one of smoke, quick, paper; got huge"),
        (["reproduce"], "figures to reproduce, or all of them; got neither"),
        (["reproduce", "wu/fig99"], "got wu/fig99"),
    ],
)
def test_wrong_request_is_one_line_and_status_2(arguments, message, capsys) -> None:
    status, out, err = call(capsys, *arguments)
    assert status == 2
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
    assert "Traceback" not in err


def test_module_and_shell_completion() -> None:
    # Typer finds the shell by looking at its parent process; a test has none, so the shell is named.
    done = subprocess.run(
        [sys.executable, "-m", "rankfall", "--show-completion", "bash"],
        capture_output=True,
        text=True,
        env={**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
    )
    assert done.returncode == 0, done.stderr
    assert "_RANKFALL_COMPLETE" in done.stdout


def test_json_is_one_object_of_plain_values(capsys) -> None:
    emit(
        {"values": torch.tensor([1.0, math.nan]), "text": "x", "nested": [{"inf": math.inf, 3: (1, True, None)}]},
        as_json=True,
        show=lambda: pytest.fail("shown as well"),
    )
    printed = capsys.readouterr().out
    assert printed.count("\n") == 1
    assert json.loads(printed) == {
        "schema": 2,
        "values": [1.0, None],
        "text": "x",
        "nested": [{"inf": None, "3": [1, True, None]}],
    }


def test_cells_are_readable() -> None:
    assert [cell(value) for value in (None, True, False, 0.123456789, 12, "x")] == [
        "-",
        "yes",
        "no",
        "0.123457",
        "12",
        "x",
    ]
    assert plain({1, 2}) in ([1, 2], [2, 1])


WIDE = [{"name": "a", **{f"number_{k}": 0.123456 + k for k in range(12)}, "note": "words that may wrap " * 3}]


def test_a_table_in_a_pipe_is_whole(capsys: pytest.CaptureFixture[str]) -> None:
    table("wide", WIDE)
    line = next(line for line in capsys.readouterr().out.splitlines() if " a " in line)
    assert len(line) > 160
    assert all(f"{0.123456 + k:.6g}" in line for k in range(12))
    assert line.count("words that may wrap") == 3


def test_a_table_on_a_terminal_drops_columns_and_breaks_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = io.StringIO()
    monkeypatch.setattr(output, "paper", Console(file=seen, force_terminal=True, width=80, color_system=None))
    table("wide", WIDE)
    text = seen.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "0.123456" in text
    assert "…" not in text
    dropped = " ".join(text.split()).partition("Not shown for lack of width: ")[2]
    shown = [k for k in range(12) if f"{0.123456 + k:.6g}" in text]
    assert shown == list(range(len(shown)))
    assert 4 < len(shown) < 12
    assert all(f"number {k}" in dropped for k in range(12) if k not in shown)
    assert "--json has all" in dropped


def test_points_without_published_values_have_no_empty_columns() -> None:
    points = [{"layer": 0, "published": None, "ours": 0.123456789, "agrees": None}, {"layer": 1, "published": None}]
    rows, columns = _readable(points)
    assert columns == ["layer", "ours"]
    assert rows[0]["ours"] == "0.1235"
