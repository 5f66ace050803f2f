"""The plan's counting against a real layer, candidates against budgets, the stopwatch against a false clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from rankfall.errors import RequestError
from rankfall.planning.candidates import (
    TOLERANCE,
    Candidate,
    Sharing,
    candidates,
    default_ranks,
    reference_shape,
    usual_heads,
)
from rankfall.planning.costs import StackShape, Stopwatch, layer_step
from rankfall.planning.table import plan


def shape(**changes: Any) -> StackShape:
    usual: dict[str, Any] = {
        "dim": 32,
        "layers": 1,
        "context": 24,
        "heads": 4,
        "rank": 8,
        "kv_heads": 4,
        "value_rank": 8,
        "hidden": 64,
    }
    return StackShape(**(usual | changes))


@pytest.mark.parametrize(
    "changes", [{}, {"kv_heads": 2}, {"rank": 16}, {"value_rank": 4}, {"hidden": 0}, {"gated": True}]
)
def test_counted_flops_are_those_of_the_layer(changes: dict[str, Any]) -> None:
    """Torch's own counter on a forward pass, attention written out: equal to our count, with no tolerance."""
    one = shape(**changes)
    d, n = one.dim, one.context
    tokens = torch.randn(n, d)
    with FlopCounterMode(display=False) as counter:
        query = (tokens @ torch.randn(d, one.heads * one.rank)).view(n, one.heads, one.rank).transpose(0, 1)
        key = (tokens @ torch.randn(d, one.kv_heads * one.rank)).view(n, one.kv_heads, one.rank).transpose(0, 1)
        value = (tokens @ torch.randn(d, one.kv_heads * one.value_rank)).view(n, one.kv_heads, -1).transpose(0, 1)
        shared = one.heads // one.kv_heads
        weights = torch.bmm(query, key.repeat_interleave(shared, 0).mT).softmax(-1)
        mixed = torch.bmm(weights, value.repeat_interleave(shared, 0)).transpose(0, 1).reshape(n, -1)
        stream = mixed @ torch.randn(one.heads * one.value_rank, d)
        if one.hidden:
            hidden = stream @ torch.randn(d, one.hidden)
            gate = stream @ torch.randn(d, one.hidden) if one.gated else hidden
            stream = (gate.relu() * hidden) @ torch.randn(one.hidden, d)
    assert counter.get_total_flops() == n * one.forward_flops
    assert one.training_flops == 3 * n * one.forward_flops


def test_parameters_and_cache() -> None:
    one = shape(layers=3, kv_heads=2)
    assert one.attention_parameters == 3 * (32 * 32 + 32 * 16 + 32 * 16 + 32 * 32)
    assert one.parameters == one.attention_parameters + 3 * 2 * 32 * 64
    assert one.kv_cache_bytes(2) == 3 * 24 * 2 * (8 + 8) * 2


@pytest.mark.parametrize("sharing", [Sharing(), Sharing(group=2), Sharing(kv_heads=2)])
@pytest.mark.parametrize("value_rank", [None, 32])
def test_candidates_keep_their_budget(sharing: Sharing, value_rank: int | None) -> None:
    reference = reference_shape(256, 2, 128, 8, 1024, sharing)
    found = candidates(reference, sharing, value_rank=value_rank)
    assert found[0] == Candidate(reference, ("reference", "parameters", "flops"))
    assert len({one.shape for one in found}) == len(found)
    for one in found:
        if "parameters" in one.equal:
            assert abs(one.shape.attention_parameters / reference.attention_parameters - 1) <= TOLERANCE
        if "flops" in one.equal:
            assert abs(one.shape.training_flops / reference.training_flops - 1) <= TOLERANCE


def test_ranks_and_usual_heads() -> None:
    assert default_ranks(768, 64) == (12, 24, 32, 48, 64, 96, 128, 192, 384, 768)
    assert default_ranks(2560, 256)[-6:] == (256, 320, 512, 640, 1280, 2560)
    assert default_ranks(7, 7) == (7,)
    assert default_ranks(4, 4) == (2, 4)
    assert usual_heads(768, Sharing()) == 12
    assert usual_heads(100, Sharing(group=5)) in (5, 10, 20, 25)
    with pytest.raises(RequestError, match="a width that has a divisor"):
        usual_heads(7, Sharing(group=3))


def test_the_stopwatch_takes_medians_and_keeps_to_its_time() -> None:
    """A clock that only the stopwatch reads, ticking one second a time: every step seems to take one second."""

    def ticks() -> Iterator[float]:
        now = 0.0
        while True:
            yield now
            now += 1.0

    clock = ticks()
    shapes = [shape(), shape(heads=2, kv_heads=2, rank=16, value_rank=16, layers=5)]
    shares: list[float] = []
    found = Stopwatch(30.0, clock=lambda: next(clock)).measure(shapes, lambda what, share: shares.append(share))
    assert [found[one].seconds for one in shapes] == [1.0, 5.0]
    assert all(timing.steps >= 1 for timing in found.values())
    assert next(clock) < 60
    assert shares == [0.25, 0.5, 0.75, 1.0]


def test_the_stopwatch_gives_up_after_three_times_its_time() -> None:
    """Every look at the clock costs a minute: the first shape is timed, the others are not reached."""
    looks = iter(range(0, 60_000, 60))
    shapes = [shape(), shape(layers=2), shape(layers=3)]
    found = Stopwatch(seconds=10.0, clock=lambda: float(next(looks))).measure(shapes)
    assert list(found) == shapes[:1]
    assert found[shapes[0]].steps == 1


def test_the_timed_step_is_a_real_one() -> None:
    """Forward and backward run for shared heads and unequal value rank, and the loss is a finite number."""
    latent = shape(value_rank=4, kv_latent=12, rope_dims=4, q_latent=6)
    for one in (shape(kv_heads=2, value_rank=4), shape(gated=True), latent):
        loss = layer_step(one)()
        assert loss.requires_grad
        assert bool(torch.isfinite(loss))


def test_a_window_bounds_cache_and_mixing() -> None:
    """Five of six layers see 8 of 24 tokens."""
    full, windowed = shape(layers=6), shape(layers=6, window=8, windowed=5)
    assert windowed.keys_seen == 24 + 5 * 8
    assert windowed.kv_cache_bytes() == full.kv_cache_bytes() * 64 // 144
    saved = 2 * (full.keys_seen - windowed.keys_seen) * 4 * 16
    assert full.forward_flops - windowed.forward_flops == saved
    assert shape(layers=6, window=99, windowed=6).kv_cache_bytes() == full.kv_cache_bytes()


def test_a_latent_is_all_that_is_cached() -> None:
    one = shape(value_rank=4, kv_latent=12, rope_dims=4, q_latent=6, hidden=0)
    assert one.kv_cache_bytes(1) == 24 * 16
    assert one.attention_parameters == 32 * 6 + 6 * 32 + 32 * 16 + 12 * 4 * (4 + 4) + 16 * 32


def test_measured_accuracy_is_one_more_column() -> None:
    reference = reference_shape(64, 1, 16, 4, 0, Sharing())
    found = candidates(reference, Sharing(), ranks=[16, 64])
    accuracy = {(4, 16): 0.7, (1, 64): 0.02}
    rows = plan(found, [lambda one: {"mse_measured": accuracy.get((one.shape.heads, one.shape.rank))}])
    assert [(row["heads"], row["rank"], row["mse_measured"]) for row in rows] == [(4, 16, 0.7), (1, 64, 0.02)]


def test_steps_that_would_take_too_long_are_not_begun(monkeypatch) -> None:
    begun = []
    monkeypatch.setattr("rankfall.planning.costs.layer_step", lambda shape, *_: begun.append(shape) or (lambda: None))
    small, large = (shape(dim=dim) for dim in (32, 4096))
    monkeypatch.setattr("rankfall.planning.costs.products_a_second", lambda *_: large.training_flops / 10.0)
    found = Stopwatch(seconds=1.0).measure([small, large])
    assert set(begun) == set(found) == {small}
