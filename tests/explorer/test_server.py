"""`rankfall explore` before there is a page: what it refuses, and in which words."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from rankfall.cli.main import run
from rankfall.errors import RequestError
from rankfall.explorer.server import HOST, free_port


def test_without_the_extra_one_line_names_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit) as ended:
        run(["explore", "--no-browser"])
    assert ended.value.code == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "pip install 'rankfall[app]'" in err


def test_a_taken_port_is_refused_and_none_asked_for_is_found() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RequestError, match=f"a free port on {HOST}; got {port}; give another --port"):
            free_port(port)
        assert free_port(None) != port
    assert free_port(0) > 0
    with pytest.raises(RequestError, match="got 99999999"):
        free_port(99999999)
