"""Sinks are found and named; several texts become one row with an honest interval."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.models.small import measure_one
from tests.sampling import normal

from rankfall.models.depth.capture import Place
from rankfall.models.depth.massive import find_massive
from rankfall.models.depth.rows import CONFIDENCE, RESAMPLES, bootstrap, gather, spans


def crowd(n: int = 40, d: int = 16) -> torch.Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(0))


def test_a_planted_sink_is_named() -> None:
    tokens = crowd()
    tokens[3] = 0.01 * tokens[3]
    tokens[3, 7] = 300.0
    (sink,) = find_massive(tokens, 2, [f"t{index}" for index in range(40)])
    assert (sink.text, sink.position, sink.token, sink.coordinate) == (2, 3, "t3", 7)
    assert sink.norm_ratio > 50
    assert sink.energy_share > 0.98
    assert sink.coordinate_share > 0.99


def test_an_even_crowd_has_no_sinks() -> None:
    assert find_massive(crowd(), 0, []) == []
    assert find_massive(torch.zeros(20, 4), 0, []) == []
    few = crowd(5)
    few[0] *= 100
    assert find_massive(few, 0, []) == []


def test_leaving_the_sink_out_is_measuring_the_rest() -> None:
    tokens = crowd()
    tokens[0] *= 100
    with_sink = measure_one(Place(1), 0, tokens, [])
    rest = measure_one(Place(1), 0, tokens[1:], [])
    assert with_sink.without is not None
    assert with_sink.values["raw"]["energy_rank"] < 1.2
    for view in ("raw", "unit", "centred"):
        for name, value in rest.values[view].items():
            assert with_sink.without[view][name] == pytest.approx(value, rel=1e-9, abs=1e-12), f"{view} {name}"


def test_rows_average_over_texts() -> None:
    texts = [measure_one(Place(1), number, crowd(20 + number), []) for number in range(5)]
    (row,) = gather(texts)
    assert row.texts == 5
    assert row.interval is not None
    for name in ("effective_rank", "energy_rank"):
        values = [one.values["unit"][name] for one in texts]
        assert row.values["unit"][name] == pytest.approx(np.mean(values))
        low, high = row.interval["unit"][name]
        assert min(values) <= low <= np.mean(values) <= high <= max(values)
    (single,) = gather(texts[:1])
    assert single.interval is None


def test_the_bootstrap_covers_the_mean_about_as_often_as_it_says() -> None:
    draws = np.random.default_rng(0).standard_normal((300, 20))
    low, high = bootstrap(torch.from_numpy(draws.T))
    covered = ((low <= 0) & (high >= 0)).double().mean()
    # A percentile interval from 20 values covers a little less than 95 %; 300 trials have a spread of 1.3 %.
    assert 0.88 <= covered <= 0.98


def test_intervals_are_those_of_each_quantity_alone() -> None:
    values = normal(3, 6, 4)
    low, high = bootstrap(values, seed=5)
    drawn = np.random.default_rng(5).integers(0, 6, size=(RESAMPLES, 6))
    for index in range(4):
        means = values[:, index].numpy()[drawn].mean(axis=1)
        ends = np.percentile(means, [50 * (1 - CONFIDENCE), 100 - 50 * (1 - CONFIDENCE)])
        assert [float(low[index]), float(high[index])] == pytest.approx(ends.tolist(), rel=1e-12)


def test_layers_are_written_as_people_do() -> None:
    assert spans([3, 12, 13, 14, 20]) == "3, 12-14, 20"
