"""TensorBoard logs: what was trained is what is drawn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.training.conftest import tiny

from rankfall.errors import RequestError
from rankfall.training.work import Board

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def test_curves_reach_the_log(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    cells = [tiny(seed=0), tiny(seed=1)]
    with Board(str(tmp_path), cells, 0) as board:
        for step in (100, 200):
            board.log([{"step": step, "loss": step / (index + 1), "fresh": None} for index in range(2)])
    folders = sorted(tmp_path.iterdir())
    assert [folder.name.rpartition("-")[0] for folder in folders] == ["L1-m1-r2-s0", "L1-m1-r2-s1"]
    log = EventAccumulator(str(folders[1]))
    log.Reload()
    assert [(event.step, event.value) for event in log.Scalars("loss")] == [(100, 50.0), (200, 100.0)]
    assert "fresh" not in log.Tags()["scalars"]


def test_without_a_folder_nothing_is_written_or_imported(tmp_path: Path) -> None:
    with Board(None, [tiny()], 0) as board:
        board.log([{"step": 100, "loss": 1.0}])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_tensorboard_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RequestError, match="required TensorBoard for --tensorboard; got no such package; pip"):
        Board(str(tmp_path), [tiny()], 0)
