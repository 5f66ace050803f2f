"""What a listed engine owes: the local one's numbers, nothing trained twice or left behind, a stop obeyed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.training.conftest import QUICK, tiny

from rankfall.catalogue import ENGINES
from rankfall.errors import RequestError
from rankfall.store.store import Store
from rankfall.training.engines.base import Engine
from rankfall.training.engines.local import LocalEngine
from rankfall.training.sweep import plan_for, sweep
from rankfall.training.work import Watch

CELLS = [tiny(seed=0), tiny(seed=1), tiny(layers=2)]
# Those that need a package have a cluster to start; their own tests do.
OWN = [kind for kind in ENGINES if kind.requires is None]
OTHERS = [kind for kind in ENGINES if kind.requires is not None]


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_an_engine_trains_what_the_local_one_trains(kind: type[Engine], store: Store, tmp_path: Path) -> None:
    engine = kind(QUICK)
    assert engine.device().partition(":")[0] in ("cpu", "cuda")
    assert engine.workers() >= 1
    assert engine.memory() > 2**20
    outcome = sweep(CELLS, store, engine=engine)
    engine.close()
    assert (outcome.complete, outcome.trained) == (True, 3)
    expected = sweep(CELLS, tmp_path / "local", engine=LocalEngine(QUICK))
    for row, other in zip(outcome.rows, expected.rows, strict=True):
        assert row["mse_best"] == pytest.approx(other["mse_best"], rel=1e-4), "float32 over 200 steps"
    assert sweep(CELLS, store, engine=kind(QUICK)).trained == 0
    assert [path for path in store.claims_folder.rglob("*") if path.is_file()] == []
    assert list(store.checkpoints_folder.iterdir()) == []


@pytest.mark.parametrize("kind", OWN, ids=lambda kind: kind.name)
def test_an_engine_that_is_told_to_stop_stops(kind: type[Engine], store: Store) -> None:
    engine = kind(QUICK)
    assert not engine.run(plan_for(CELLS, store, engine), store, Watch(stop=lambda: True))
    assert len(store.missing(CELLS)) == 3


@pytest.mark.parametrize("kind", OTHERS, ids=lambda kind: kind.name)
def test_a_missing_package_is_named(kind: type[Engine], monkeypatch: pytest.MonkeyPatch) -> None:
    assert kind.requires is not None
    monkeypatch.setitem(sys.modules, kind.requires, None)
    with pytest.raises(RequestError, match="no such package; pip install"):
        kind(QUICK)


ABSENT = (
    "psutil", "threadpoolctl", "platformdirs", "duckdb", "gguf", "marimo", "beartype", "ray", "tensorboard",
    "matplotlib", "transformers",
)  # fmt: skip
ROOMS = ("mechanism", "theory", "constructions", "tasks", "dynamics", "equilibria", "store", "training", "planning")


def test_a_machine_with_the_bare_libraries_trains() -> None:
    """Every module of the rooms up to training is imported, and two cells are trained, without optional packages."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys({ABSENT!r}))
import importlib, pkgutil, tempfile, rankfall
for room in {ROOMS!r}:
    package = importlib.import_module(f"rankfall.{{room}}")
    for one in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(one.name)
import rankfall.cli.sweep, rankfall.cli.runs, rankfall.system
from rankfall.training.cell import Cell
from rankfall.training.options import Options
from rankfall.training.sweep import sweep
cells = [Cell(dim=4, points=3, rank=2, feed_forward=4, batch=4, steps=100, seed=seed) for seed in (0, 1)]
options = Options(device="cpu", threads=1, memory=2**30)
with tempfile.TemporaryDirectory() as folder:
    print(sweep(cells, folder + "/store", options=options).trained)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "2", done.stderr
