"""The way tokens are measured on a GPU, taken on the processor, finds what the way of the host finds."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rankfall.errors import RequestError
from rankfall.models.depth.bootstrap import CONFIDENCE, RESAMPLES, bootstrap
from rankfall.models.depth.capture import Place
from rankfall.models.depth.measure import measure_depth, measure_one
from rankfall.models.depth.on_device import DeviceRoute
from rankfall.models.depth.passes import passes
from rankfall.models.depth.rows import Values

N, D = 24, 32


def tokens_at(layer: int, texts: int, n: int = N, d: int = D) -> Tensor:
    generator = torch.Generator().manual_seed(layer)
    x = torch.randn(texts, n, d, generator=generator)
    if layer % 3 == 1:
        x[:, 2] *= 40  # a sink
    if layer % 3 == 2:
        x[:, 7] = x[:, 5]
    if layer == 4:
        # A direction that the square of a float64 loses.
        u, s, v = torch.linalg.svd(x.double(), full_matrices=False)
        x = ((u * torch.where(torch.arange(s.shape[-1]) == s.shape[-1] - 1, 2e-6 * s[:, :1], s)[:, None]) @ v).float()
    return x


def by_host(places: int, texts: int, real: list[Tensor | None], names: list[list[str]], repeat: bool) -> dict:
    found = {}
    for layer in range(places):
        for text, given in enumerate(tokens_at(layer, texts)):
            kept = given if real[text] is None else given[real[text]]
            found[layer, text] = measure_one(Place(layer), text, kept, names[text], repeat)
    return found


def assert_equal(ours: Values | None, theirs: Values | None, where: str) -> None:
    assert (ours is None) == (theirs is None), where
    for view in theirs or {}:
        for name, value in theirs[view].items():
            assert ours[view][name] == pytest.approx(value, rel=1e-6, abs=1e-7), f"{where} {view} {name}"


@pytest.mark.parametrize("repeat", [False, True])
@pytest.mark.parametrize("expected_places", [7, 3, 40])
def test_both_ways_find_the_same(repeat: bool, expected_places: int) -> None:
    texts, places = 2, 7
    real: list[Tensor | None] = [None, torch.arange(N) < 17]
    names = [[f"{text}-{token}" for token in range(N)] for text in range(texts)]
    steps: list[int] = []
    route = DeviceRoute(names, real, repeat, expected_places, done=lambda: steps.append(1))
    for layer in range(places):
        route.take(Place(layer), tokens_at(layer, texts))
    found = {(one.place.layer, one.text): one for one in route.results()}
    route.close()
    expected = by_host(places, texts, real, names, repeat)
    assert found.keys() == expected.keys()
    assert len(steps) == places * texts
    for key, one in expected.items():
        assert_equal(found[key].values, one.values, f"{key}")
        assert_equal(found[key].without, one.without, f"{key} without sinks")
        same = [(sink.position, sink.token, sink.coordinate) for sink in one.sinks]
        assert [(sink.position, sink.token, sink.coordinate) for sink in found[key].sinks] == same
        for ours, theirs in zip(found[key].sinks, one.sinks, strict=True):
            for name in ("norm_ratio", "energy_share", "coordinate_share"):
                assert getattr(ours, name) == pytest.approx(getattr(theirs, name), rel=1e-9)
    assert any(one.sinks for one in expected.values())


def test_a_lost_singular_value_is_found_again() -> None:
    x = tokens_at(4, 1)
    route = DeviceRoute([[""] * N], [None], False, 1)
    route.take(Place(0), x)
    (found,) = route.results()
    route.close()
    exact = float(torch.linalg.svdvals(x[0].double())[-1])
    assert exact < 1e-5 * float(torch.linalg.svdvals(x[0].double())[0])
    assert found.values["raw"]["min_singular_value"] == pytest.approx(exact, rel=1e-6)


def test_tokens_of_several_shapes_and_a_single_direction() -> None:
    one_direction = (
        torch.ones(1, 9, 4).double()
        + 1e-10 * torch.randn(1, 9, 4, generator=torch.Generator().manual_seed(0)).double()
    )
    route = DeviceRoute([[""] * N], [None], False, 3)
    given = {0: tokens_at(0, 1), 1: tokens_at(0, 1, n=40), 2: one_direction}
    for layer, x in given.items():
        route.take(Place(layer), x)
    found = {one.place.layer: one for one in route.results()}
    route.close()
    for layer, x in given.items():
        assert_equal(found[layer].values, measure_one(Place(layer), 0, x[0], [""] * N).values, f"{layer}")


def test_tokens_that_are_no_numbers_are_refused() -> None:
    x = tokens_at(0, 1)
    x[0, 3, 3] = math.nan
    route = DeviceRoute([[""] * N], [None], False, 1)
    route.take(Place(0), x)
    with pytest.raises(RequestError, match="finite"):
        route.results()
    route.close()


def test_processors_do_not_take_this_way() -> None:
    assert not DeviceRoute.suits(tokens_at(0, 1))


class Twice(torch.nn.Module):
    """Two blocks that mix tokens, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(D, D) for _ in range(2)])

    def forward(self, given: Tensor, factor: float = 1.0) -> Tensor:
        for layer in self.layers:
            given = given + factor * torch.tanh(layer(given))
        return given


@pytest.mark.parametrize("at_once", [1, 2, 5])
def test_texts_may_run_through_the_model_a_few_at_a_time(at_once: int) -> None:
    model, x = Twice(), tokens_at(1, 5)
    given = {"real": [None] * 5, "names": [[""] * N] * 5}
    together = measure_depth(model, {"given": x, "factor": 0.5}, **given)
    some = measure_depth(model, {"given": x, "factor": 0.5}, **given, at_once=at_once)
    assert [row.texts for row in some] == [5] * len(together)
    for ours, theirs in zip(some, together, strict=True):
        assert [one.text for one in ours.per_text] == list(range(5))
        assert_equal(ours.values, theirs.values, f"{theirs.layer}")


def test_nothing_at_once_is_refused() -> None:
    with pytest.raises(RequestError, match="texts at once"):
        list(passes({"given": tokens_at(0, 3)}, 3, 0))


def test_intervals_are_those_of_each_quantity_alone() -> None:
    values = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    low, high = bootstrap(values, seed=5)
    drawn = np.random.default_rng(5).integers(0, 6, size=(RESAMPLES, 6))
    for index in range(4):
        means = values[:, index].numpy()[drawn].mean(axis=1)
        ends = np.percentile(means, [50 * (1 - CONFIDENCE), 100 - 50 * (1 - CONFIDENCE)])
        assert [float(low[index]), float(high[index])] == pytest.approx(ends.tolist(), rel=1e-12)


def test_nothing_taken_gives_nothing() -> None:
    route = DeviceRoute([[""] * N], [None], False, 1)
    assert route.results() == []
    route.close()
