"""The results under `results/`: every line is what it claims to be, and a sweep goes on from it."""

from __future__ import annotations

from pathlib import Path

import pytest

import rankfall
from rankfall.store.identity import identity
from rankfall.store.results import import_results
from rankfall.store.store import Store
from rankfall.training.kinds import cell_from
from rankfall.training.plan import make_plan

RESULTS = Path(rankfall.__file__).parents[2] / "results"
PAGES = sorted(page for page in RESULTS.rglob("*.csv") if page.with_suffix(".json").exists())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: f"{page.parent.name}/{page.stem}")
def test_committed_results_are_cells_that_a_sweep_leaves_out(store: Store, page: Path) -> None:
    taken = import_results(store, page)
    assert len(taken) == len(page.read_text().splitlines()) - 1
    runs = list(store.runs())
    cells = [cell_from(run.config) for run in runs]
    assert [identity(cell) for cell in cells] == [run.id for run in runs]
    assert make_plan(cells, store, memory=2**40).stacks == ()
    for run in runs:
        assert {"commit", "hardware", "date"} <= set(run.environment)
        assert run.summary()["status"] in ("done", "diverged")
