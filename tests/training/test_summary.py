"""Over seeds: best, mean, spread; diverged runs counted apart."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from rankfall.training.cell import Cell
from rankfall.training.sweep import aggregate


def run(seed: int, rank: int, best: float, status: str = "done") -> tuple[Cell, dict[str, Any]]:
    return Cell(seed=seed, rank=rank), {"status": status, "mse_best": best, "mse_final": best, "mse_fresh": 2 * best}


def test_over_seeds() -> None:
    records = aggregate([run(0, 8, 0.4), run(1, 8, 0.6), run(2, 8, math.inf, "diverged"), run(0, 64, 0.1)], ("rank",))
    by_rank = {record["rank"]: record for record in records}
    assert by_rank[8]["mse_best_best"] == 0.4
    assert by_rank[8]["mse_best_mean"] == pytest.approx(0.5)
    assert by_rank[8]["mse_fresh_spread"] == pytest.approx(0.4)
    assert (by_rank[8]["runs"], by_rank[8]["diverged"], by_rank[8]["heads"]) == (2, 1, 8)
    assert by_rank[64]["mse_best_deviation"] is None


def test_all_diverged() -> None:
    (record,) = aggregate([run(0, 8, math.nan, "diverged")], ("rank",))
    assert record["mse_best_best"] is None
    assert record["diverged"] == 1


def test_the_best_rate_speaks_for_its_group() -> None:
    slow = [
        (dataclasses.replace(cell, learning_rate=0.1), summary) for cell, summary in (run(0, 8, 0.9), run(1, 8, 0.5))
    ]
    (record,) = aggregate([*slow, run(6, 8, 0.41), run(7, 8, 0.4)], ("rank",))
    assert (record["mse_best_best"], record["runs"]) == (0.4, 2)
    assert record["mse_best_spread"] == pytest.approx(0.01), "not that between rates"
