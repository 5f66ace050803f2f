"""Measuring by depth: padding and sinks left out, several texts, tokens in groups that bound what waits."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import pytest
import torch
from tests.models.small import measure_one
from torch import Tensor

from rankfall.catalogue import MEASURES
from rankfall.errors import RequestError
from rankfall.measures.base import measure
from rankfall.measures.profile import VIEWS
from rankfall.models.depth import measure as module
from rankfall.models.depth.capture import Place
from rankfall.models.depth.measure import DepthMeasurement
from rankfall.models.depth.rows import Values

N, D = 24, 32


def tokens_at(layer: int, texts: int, n: int = N, d: int = D) -> Tensor:
    x = torch.randn(texts, n, d, generator=torch.Generator().manual_seed(layer))
    if layer % 3 == 1:
        x[:, 2] *= 40  # a sink
    if layer % 3 == 2:
        x[:, 7] = x[:, 5]
    return x


def assert_equal(ours: Values | None, theirs: Values | None, where: str) -> None:
    assert (ours is None) == (theirs is None), where
    for view in theirs or {}:
        for name, value in theirs[view].items():
            assert ours[view][name] == pytest.approx(value, rel=1e-9, abs=1e-12), f"{where} {view} {name}"


@pytest.mark.parametrize("without_sinks", [False, True])
@pytest.mark.parametrize("at_once", [1, 3 * N * D, 1 << 22])
def test_texts_measured_in_groups_are_those_measured_alone(
    without_sinks: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", at_once)
    texts, places = 2, 7
    real = [None, torch.arange(N) % 5 != 0]
    names = [[f"{text}-{token}" for token in range(N)] for text in range(texts)]
    taken = DepthMeasurement(real, names, without_sinks=without_sinks)
    for layer in range(places):
        given = tokens_at(layer, texts)
        given[1, 0] = math.nan  # padding may hold anything
        taken.take(Place(layer), given)
        given.zero_()  # a model may write over what it gave
    rows = taken.rows()
    assert [row.layer for row in rows] == list(range(places))
    for row in rows:
        for text, found in enumerate(row.per_text):
            given = tokens_at(row.layer, texts)[text]
            kept = given if real[text] is None else given[real[text]]
            expected = measure_one(Place(row.layer), text, kept, names[text], without_sinks)
            assert_equal(found.values, expected.values, f"{row.layer} {text}")
            assert_equal(found.without, expected.without, f"{row.layer} {text} without sinks")
            assert found.sinks == expected.sinks
            assert (found.without is not None) == (without_sinks and row.layer % 3 == 1)
            raw = measure(kept)
            assert found.values["raw"] == pytest.approx({name: float(value) for name, value in raw.items()}, rel=1e-9)
    assert any(row.sinks for row in rows)


def test_no_more_waits_than_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NUMBERS_AT_ONCE", 3 * N * D)
    sizes: list[int] = []

    def watched(matrices: Sequence[Tensor], chosen: Collection[str]) -> list[Values]:
        sizes.append(len(matrices))
        return [{}] * len(matrices)

    monkeypatch.setattr(module, "_values", watched)
    taken = DepthMeasurement([None], [[]])
    for layer in range(8):
        taken.take(Place(layer), tokens_at(0, 1))
    assert sizes == [3, 3]
    taken.rows()
    assert sizes == [3, 3, 2]


def test_layers_that_were_not_asked_for_are_not_measured_but_the_last_is() -> None:
    taken = DepthMeasurement([None], [[]], layers={1, 3})
    for layer in range(5):
        taken.take(Place(layer), tokens_at(layer, 1))
    taken.take(Place(4, "before_final_norm"), tokens_at(4, 1))
    assert [(row.layer, row.part) for row in taken.rows()] == [
        (1, "boundary"),
        (3, "boundary"),
        (4, "before_final_norm"),
        (4, "boundary"),
    ]


def test_every_listed_measure_is_in_every_view() -> None:
    found = measure_one(Place(0), 0, tokens_at(1, 1)[0], [])
    assert found.without is not None
    for values in (found.values, found.without):
        assert tuple(values) == VIEWS
        for view in VIEWS:
            assert list(values[view]) == [*MEASURES.names, "most"]


def test_tokens_that_are_no_numbers_are_refused() -> None:
    x = tokens_at(0, 1)
    x[0, 3, 3] = math.nan
    taken = DepthMeasurement([None], [[]])
    taken.take(Place(0), x)
    with pytest.raises(RequestError, match="finite"):
        taken.rows()
