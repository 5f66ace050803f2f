"""`rankfall explore --json`: the address first, as one object; then the page, until it is stopped."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

pytest.importorskip("marimo", reason="the extra app is not installed")


def test_prints_the_address_once_the_page_answers_and_serves_until_stopped(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "rankfall", "explore", "--no-browser", "--json", "--port", "0"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            said = json.loads(running.stdout.readline())
            assert said["schema"] == 2
            assert said["url"].startswith(f"http://127.0.0.1:{said['port']}/?access_token=")
            with urllib.request.urlopen(said["url"], timeout=60) as page:
                assert page.status == 200
            assert running.poll() is None
        finally:
            running.send_signal(signal.SIGTERM)
        rest, _ = running.communicate(timeout=60)
        assert (running.returncode, rest) == (0, "")
