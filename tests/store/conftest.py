"""A configuration, a run and a store to test with; nothing here knows about training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rankfall.store.store import Store


@dataclass(frozen=True)
class Setting:
    name: str = "small"
    size: int = 4
    rate: float = 0.01
    extra: int | None = None
    added: bool = field(default=False, metadata={"later": True})


def write(store: Store, setting: Setting, **changes: Any) -> str:
    parts: dict[str, Any] = {
        "summary": {"status": "done", "name": setting.name, "size": setting.size, "error": setting.size / 3},
        "history": [{"chunk": chunk, "loss": 1 / (chunk + 3)} for chunk in range(3)],
        "weights": {"matrix": torch.arange(4.0)},
        "environment": {"hardware": "Some(R) CPU, 2 cores", "date": "2026-01-02", "commit": "abc"},
    }
    return store.write(setting, **(parts | changes)).id


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")
