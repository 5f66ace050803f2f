"""Threads of a stack: by its size alone, what was asked for instead, and afterwards what there was before."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.training.conftest import QUICK, tiny

from rankfall.figures import trained
from rankfall.store.store import Store
from rankfall.training import estimate as estimates
from rankfall.training.kinds import step_flops
from rankfall.training.plan import make_plan
from rankfall.training.text import timing
from rankfall.training.text.cell import TextCell
from rankfall.training.threads import FLOPS_PER_THREAD, fitting_count, stack_threads
from rankfall.training.work import Watch, train


@pytest.fixture(autouse=True)
def two_allowed(one_thread: None) -> Iterator[None]:
    torch.set_num_threads(2)
    yield
    assert torch.get_num_threads() == 2, "whoever trains leaves the setting as it was"


def test_a_thread_for_each_so_many_operations_of_a_step() -> None:
    large = TextCell()
    several = int(step_flops(large) // FLOPS_PER_THREAD)
    assert several > 2
    assert [fitting_count((large,), allowed) for allowed in (1, 2, several, 4096)] == [1, 2, several, several]
    assert fitting_count((tiny(),), 4096) == 1
    many = int(2 * FLOPS_PER_THREAD // step_flops(tiny())) + 1
    assert fitting_count((tiny(),) * many, 4096) == 2


def test_a_gpu_and_a_wish_are_left_alone() -> None:
    found = []
    for device, threads in (("cpu", None), ("cuda", None), ("cpu", 2), ("cpu", 1), ("cuda", 1)):
        with stack_threads((tiny(),), device, threads):
            found.append(torch.get_num_threads())
    assert found == [1, 2, 2, 1, 1]


def test_the_setting_comes_back_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), stack_threads((tiny(),), "cpu"):
        assert 1 / 0


@pytest.mark.parametrize(("wish", "expected"), [(None, 1), (2, 2)])
def test_a_sweep_trains_with_them(store: Store, wish: int | None, expected: int) -> None:
    train((tiny(),), store, replace(QUICK, threads=wish), Watch())
    (run,) = store.runs()
    assert run.environment["threads"] == expected


@pytest.mark.parametrize(("wish", "expected"), [(None, 1), (2, 2)])
def test_a_trial_is_of_what_will_be_trained(
    store: Store, monkeypatch: pytest.MonkeyPatch, wish: int | None, expected: int
) -> None:
    seen = watched(monkeypatch, estimates, "build_stack")
    estimates.estimate(make_plan([tiny()], store, memory=2**34), store, "cpu", threads=wish)
    assert seen == [expected]


def test_steps_are_timed_and_figures_trained_with_them(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for module, name, use in (
        (timing, "TextStack", lambda: timing._measured(TextCell(width=16, batch=1, context=8), tmp_path, "cpu")),
        (trained, "Stack", lambda: trained.train([tiny()], lambda what, share: None)),
    ):
        seen = watched(monkeypatch, module, name, ends=True)
        with pytest.raises(StopIteration):
            use()
        assert seen == [1]


def watched(monkeypatch: pytest.MonkeyPatch, module: Any, name: str, ends: bool = False) -> list[int]:
    """The number of threads whenever a stack is built."""
    seen: list[int] = []
    build = getattr(module, name)

    def built(*arguments: Any, **options: Any) -> Any:
        seen.append(torch.get_num_threads())
        if ends:
            raise StopIteration
        return build(*arguments, **options)

    monkeypatch.setattr(module, name, built)
    return seen
