"""Cells that train in a fraction of a second, and ways to look at a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.options import Options

TINY: dict[str, Any] = {"dim": 4, "points": 3, "rank": 2, "feed_forward": 4, "batch": 4, "steps": 200}
GRID = """
dim = 4
points = 3
feed_forward = 4
batch = 4
steps = 100
rank = [1, 2, 4]
"""
"""Three cells, a file of settings."""
QUICK = Options(device="cpu", threads=1, checkpoint_seconds=0)


def tiny(**changes: Any) -> Cell:
    return Cell(**(TINY | changes))


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
