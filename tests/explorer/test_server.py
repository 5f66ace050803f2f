"""`rankfall explore` before there is a page: what it refuses, and in which words."""

from __future__ import annotations

import importlib.util
import socket

import pytest

from rankfall.errors import RequestError
from rankfall.explorer.server import HOST, free_port
from tests.calls import call


def test_without_the_extra_one_line_names_it(monkeypatch, capsys) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, err = call(capsys, "explore", "--no-browser")
    assert (status, err.count("\n")) == (2, 1)
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
    with pytest.raises(RequestError, match="a port up to 65535; got 99999999"):
        free_port(99999999)
