"""The page's server: marimo in a process of its own, on 127.0.0.1, behind a token that no process list shows."""

from __future__ import annotations

import importlib.util
import os
import secrets
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final
from urllib.parse import urlencode

from rankfall.errors import RequestError, require
from rankfall.explorer.stored import REPORTS, STORE

HOST = "127.0.0.1"
USUAL_PORT = 8321
MOST_PORT = 65535
SECONDS_TO_START = 120.0


@final
@dataclass(frozen=True)
class Served:
    """A running page."""

    port: int
    token: str
    process: subprocess.Popen[bytes]

    def link(self, query: dict[str, str] | None = None) -> str:
        """The address to open; the token opens it once, a cookie keeps it open."""
        return f"http://{HOST}:{self.port}/?{urlencode({'access_token': self.token, **(query or {})})}"


def require_marimo() -> None:
    """The page needs the extra `app`."""
    require(
        importlib.util.find_spec("marimo") is not None,
        required="marimo, which draws the page",
        got="it is not installed",
        remedy="pip install 'rankfall[app]'",
    )


def free_port(asked: int | None) -> int:
    """The port asked for, or the usual one, or any other when that is taken."""
    fits = asked is None or 0 <= asked <= MOST_PORT
    require(fits, required=f"a port up to {MOST_PORT}", got=asked, remedy="give another --port, or none")
    for port in (asked,) if asked is not None else (USUAL_PORT, 0):
        with socket.socket() as trial:
            # A page that was stopped a moment ago does not hold its port.
            trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                trial.bind((HOST, port))
            except OSError:
                continue
            return int(trial.getsockname()[1])
    raise RequestError(required=f"a free port on {HOST}", got=asked, remedy="give another --port, or none")


@contextmanager
def serve(port: int | None, store: Path, reports: Path) -> Iterator[Served]:
    """Start the page, wait until it answers, and stop it at the end."""
    require_marimo()
    chosen, token = free_port(port), secrets.token_urlsafe(16)
    page = Path(__file__).with_name("page.py")
    words = [sys.executable, "-P", "-m", "marimo", "--quiet", "--yes", "run", str(page), "--headless", "--no-sandbox"]
    words += ["--host", HOST, "--port", str(chosen), "--token", "--token-password-file", "-", "--no-check"]
    # The page's matrices are small. Two threads win a few milliseconds on an idle machine and, waiting for each other
    # while the browser has a core, lose hundreds; whoever has set a number of threads keeps it.
    known = {"OMP_NUM_THREADS": "1"} | os.environ | {STORE: str(store.absolute()), REPORTS: str(reports.absolute())}
    known["MARIMO_SKIP_UPDATE_CHECK"] = "1"
    # Not in the user's folder, which may hold files of strangers: neither modules nor settings are taken from there.
    process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, env=known, cwd=page.parent)
    try:
        assert process.stdin is not None
        process.stdin.write(token.encode() + b"\n")
        process.stdin.close()
        _wait_for(process, chosen)
        yield Served(chosen, token, process)
    finally:
        process.terminate()
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait_for(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + SECONDS_TO_START
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"http://{HOST}:{port}/health", timeout=2):
                return
        except (OSError, urllib.error.URLError):
            time.sleep(0.1)
    raise RequestError(
        required=f"the page to answer on {HOST}:{port}",
        got="no answer" if process.poll() is None else f"marimo ended with status {process.returncode}",
        remedy="see the lines above",
    )
