"""Estimates: from the same shape, else the same hardware, else other hardware, else a trial."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tests.training.conftest import tiny

from rankfall.provenance import hardware
from rankfall.store.identity import settings
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.estimate import estimate
from rankfall.training.plan import group_flops, make_plan, step_flops

WANTED = [tiny(seed=5), tiny(seed=6), tiny(layers=3)]


def add(store: Store, cell: Cell, seconds: float, **changes: Any) -> None:
    facts = {"device": "cpu", "hardware": hardware(), "seconds": seconds, "steps_done": cell.steps}
    store.write(cell, summary={"status": "done", **settings(cell), **facts, **changes}, environment={})


def test_a_known_shape_takes_what_it_took(store: Store) -> None:
    add(store, tiny(seed=0), 4.0)
    add(store, tiny(layers=2), 80.0)
    guess = estimate(make_plan(WANTED, store, memory=2**34), store, "cpu")
    rates = [group_flops([tiny()]) / 4.0, group_flops([tiny(layers=2)]) / 80.0]
    assert guess.seconds[0] == pytest.approx(8.0), "two cells of four seconds each"
    assert guess.seconds[1] == pytest.approx(group_flops([tiny(layers=3)]) / (sum(rates) / 2))
    assert guess.source == "runs in this store"
    assert estimate(make_plan(WANTED, store, memory=2**34), store, "cpu", workers=2).total == guess.total / 2


def test_other_hardware_is_better_than_nothing(store: Store) -> None:
    add(store, tiny(seed=0), 4.0, hardware="abacus")
    guess = estimate(make_plan(WANTED[:2], store, memory=2**34), store, "cpu")
    assert (guess.total, guess.source) == (pytest.approx(8.0), "runs in this store on other hardware")


@pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
def test_without_any_guide_the_time_is_unknown(store: Store) -> None:
    guess = estimate(make_plan(WANTED, store, memory=2**34, device="cuda"), store, "cuda")
    assert math.isnan(guess.total)
    assert guess.source == "no GPU here to try it on"


def test_operations_count_what_a_step_multiplies() -> None:
    """One layer, one token, one head: 2 per multiply-add of Q, K, V, O, scores, mixing, feed-forward; times three."""
    cell = Cell(dim=4, points=1, rank=4, feed_forward=8, batch=1, steps=100, task="in-context", mask="causal")
    n = cell.tokens
    by_hand = 4 * (2 * n * 4 * 4) + 2 * (2 * n * n * 4) + 2 * (2 * n * 4 * 8)
    assert step_flops(cell) == 3 * by_hand
