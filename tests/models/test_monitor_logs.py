"""Where a monitor's scalars go: trackers by their own functions, files that are added to, refusals by name."""

from __future__ import annotations

import csv
import importlib.machinery
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from rankfall.models.monitor.alarms import Alarms, RankWarning
from rankfall.models.monitor.logs import COLUMNS, as_log
from rankfall.models.monitor.monitor import RankMonitor

QUIET = Alarms(relative_mu=0.0, energy_rank=0.0, norm_ratio=1e9)
SCALARS = {"rankfall/layers.0/energy_rank": 2.5, "rankfall/layers.1/energy_rank": 1.5}


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.GELU()) for _ in range(2)))


def batch() -> Tensor:
    return torch.randn(1, 9, 8, generator=torch.Generator().manual_seed(0))


def run_thrice(network: nn.Module) -> None:
    for _ in range(3):
        network(batch())


def stand_in(monkeypatch: pytest.MonkeyPatch, name: str, **functions: Any) -> None:
    """A module of that name, as if it were installed."""
    module = types.ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    vars(module).update(functions)
    monkeypatch.setitem(sys.modules, name, module)


def test_weights_and_biases_gets_an_axis_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    def define_metric(name: str, step_metric: str | None = None) -> None:
        got.append((name, step_metric))

    def log(data: dict[str, Any], step: int | None = None, commit: bool | None = None) -> None:
        assert step is None
        got.append(data)

    stand_in(monkeypatch, "wandb", define_metric=define_metric, log=log)
    feed = as_log("wandb")
    assert got == []
    feed(SCALARS, 7)
    feed(SCALARS, 9)
    assert got == [
        ("rankfall/step", None),
        ("rankfall/*", "rankfall/step"),
        {**SCALARS, "rankfall/step": 7},
        {**SCALARS, "rankfall/step": 9},
    ]


def test_a_run_of_weights_and_biases_may_be_given() -> None:
    got: list[Any] = []
    run = types.SimpleNamespace(define_metric=lambda *_, **__: None, log=got.append)
    as_log(run, "mine")({"mine/a/b": 1.0}, 3)
    assert got == [{"mine/a/b": 1.0, "mine/step": 3}]


def test_mlflow_gets_metrics_with_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    got: list[Any] = []

    def log_metrics(metrics: dict[str, float], step: int | None = None, synchronous: bool | None = None) -> None:
        got.append((metrics, step))

    stand_in(monkeypatch, "mlflow", log_metrics=log_metrics, log_metric=None)
    as_log("mlflow")(SCALARS, 7)
    assert got == [(SCALARS, 7)]


def test_tensorboard_writes_its_own_files(tmp_path: Path) -> None:
    events = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    feed = as_log(f"tensorboard:{tmp_path / 'runs'}")
    assert not (tmp_path / "runs").exists()
    feed(SCALARS, 7)
    feed(SCALARS, 9)
    found = events.EventAccumulator(str(tmp_path / "runs")).Reload()
    assert [(one.step, one.value) for one in found.Scalars("rankfall/layers.0/energy_rank")] == [(7, 2.5), (9, 2.5)]


@pytest.mark.parametrize("name", ["wandb", "mlflow", "tensorboard"])
def test_what_is_not_installed_is_refused_when_it_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=f"required the package {name}; got not installed; install it, or log to a"):
        RankMonitor(model(), name)


@pytest.mark.parametrize("word", ["weights", "rank.txt", "wandb:project"])
def test_unknown_words_are_refused(word: str) -> None:
    with pytest.raises(ValueError, match="name a file or a tracker"):
        as_log(word)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").mkdir()
    with pytest.raises(ValueError, match="required a file to add to"):
        as_log(tmp_path / "a.csv")


def test_csv_has_a_row_for_each_step_and_block(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rank.csv"
    network, history = model(), []
    # Files are added to: a run that is taken up again goes on in the same file.
    for _ in range(2):
        with RankMonitor(network, (str(path), history), every=1, alarms=QUIET):
            network(batch())
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["block"]) for row in rows] == [("0", "0"), ("0", "1")] * 2
    assert tuple(rows[0]) == COLUMNS
    for row in rows:
        logged = {name.split("/")[2]: value for name, value in history[0].items() if f"/{row['block']}/" in name}
        assert {name: float(text) for name, text in row.items() if text and name not in ("step", "block")} == logged


def test_blocks_with_dots_and_every_scalar_have_a_place_in_csv(tmp_path: Path) -> None:
    scalars = {f"my/run/model.layers.3/{name}": 1.0 for name in COLUMNS[2:]}
    as_log(tmp_path / "a.csv", "my/run")(scalars, 4)
    assert (tmp_path / "a.csv").read_text().splitlines()[1].startswith("4,model.layers.3,1.0,")


def test_a_csv_file_of_something_else_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "other.csv"
    path.write_text("a,b\n1,2\n")
    network = model()
    with (
        RankMonitor(network, path, every=1, alarms=QUIET),
        pytest.warns(RankWarning, match="gap at the logger.*other.csv with other columns; name another file"),
    ):
        network(batch())
    assert path.read_text() == "a,b\n1,2\n"


def test_json_lines_hold_the_scalars_by_name(tmp_path: Path) -> None:
    path = tmp_path / "new" / "rank.jsonl"
    feed = as_log(path)
    feed(SCALARS, 0)
    feed(SCALARS, 100)
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        {"step": 0, **SCALARS},
        {"step": 100, **SCALARS},
    ]


def test_of_several_logs_one_may_fail() -> None:
    def broken(scalars: Any, step: int) -> None:
        raise OSError("disk full")

    network, history = model(), []
    with (
        RankMonitor(network, (broken, history), every=1, alarms=QUIET),
        pytest.warns(RankWarning, match="gap at function, step 0: logging failed, OSError: disk full") as caught,
    ):
        run_thrice(network)
    assert len(caught) == 1
    assert [row["step"] for row in history] == [0, 1, 2]
