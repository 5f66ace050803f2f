"""The short slice of `make soak`: sweeps killed at fixed points, and several sweeps on one store."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

import rankfall

ROOT = Path(rankfall.__file__).parents[2]
POINTS = 10


@pytest.mark.slow
def test_the_slice_loses_and_doubles_nothing() -> None:
    """The program itself compares every number with those of an undisturbed sweep, and fails if one differs."""
    # newer Pythons warn of forking with threads about; nothing in these children waits for a thread of the parent
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-m", "soak", "--slice"]
    paths = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env=os.environ | {"PYTHONPATH": paths}, timeout=300
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["failures"] == []
    assert answer["trials"]["kill at points"] == {"kills": POINTS, "sweeps": POINTS + 1}
    assert answer["trials"]["together"]["sweeps"] == 2 + random.Random("together 0").randint(0, 2)
