"""The learning rate: linear up, cosine down, nothing outside."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from rankfall.training.recipe import schedule


def test_published_shape() -> None:
    factors = [schedule(chunk, 1000, 0.05) for chunk in range(1000)]
    assert factors[0] == pytest.approx(1 / 50)
    assert factors[24] == pytest.approx(0.5)
    assert factors[49] == factors[50] == 1.0
    assert factors[525] == pytest.approx(0.5)
    assert 0 < factors[-1] < 1e-5
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[49:]))


def test_warm_up_from_zero_is_the_published_one() -> None:
    """Zero in the first chunk, 1/49 of the peak more in each of the next 49, then the same cosine."""
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([parameter], lr=0.01)
    rising = torch.linspace(0, 1, 50, dtype=torch.float64).tolist()
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda chunk: rising[chunk] if chunk < 50 else (1 + math.cos(math.pi * (chunk - 50) / 950)) / 2
    )
    for chunk in range(1000):
        assert 0.01 * schedule(chunk, 1000, 0.05, "zero") == pytest.approx(optimizer.param_groups[0]["lr"], abs=1e-15)
        optimizer.step()
        scheduler.step()


def test_where_the_warm_up_begins_changes_nothing_after_it() -> None:
    assert all(schedule(chunk, 1000, 0.05, "zero") == schedule(chunk, 1000, 0.05) for chunk in range(49, 1000))


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_short_runs_still_move(chunks: int) -> None:
    assert all(0 < schedule(chunk, chunks, 0.05) <= 1 for chunk in range(chunks))
