"""The learning rate: linear up, cosine down, nothing outside."""

from __future__ import annotations

import itertools

import pytest

from rankfall.training.recipe import schedule


def test_published_shape() -> None:
    factors = [schedule(chunk, 1000, 0.05) for chunk in range(1000)]
    assert factors[0] == pytest.approx(1 / 50)
    assert factors[24] == pytest.approx(0.5)
    assert factors[49] == factors[50] == 1.0
    assert factors[525] == pytest.approx(0.5)
    assert 0 < factors[-1] < 1e-5
    assert all(later <= earlier for earlier, later in itertools.pairwise(factors[49:]))


@pytest.mark.parametrize("chunks", [1, 2, 3])
def test_short_runs_still_move(chunks: int) -> None:
    assert all(0 < schedule(chunk, chunks, 0.05) <= 1 for chunk in range(chunks))
