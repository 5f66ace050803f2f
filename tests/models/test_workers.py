"""Work on token matrices: in order, on copies, in turns that bound what waits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from rankfall.models.depth import workers as module
from rankfall.models.depth.workers import Workers, threads_for


def total(tokens: Tensor) -> float:
    return float(tokens.sum())


def test_results_come_in_the_order_of_submission() -> None:
    finished: list[int] = []
    with Workers[float](lambda: finished.append(1)) as workers:
        for number in range(20):
            workers.submit(torch.full((3, 2), float(number)), total)
        assert workers.results() == [6.0 * number for number in range(20)]
    assert len(finished) == 20


def test_tokens_may_be_overwritten_after_they_were_submitted() -> None:
    tokens = torch.ones(4, 4)
    with Workers[float]() as workers:
        workers.submit(tokens, total)
        tokens.zero_()
        assert workers.results() == [16.0]


def test_no_more_waits_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROOM", 3 * 64)
    seen: list[int] = []
    with Workers[float](lambda: seen.append(len(workers._waiting))) as workers:
        for number in range(1, 9):
            workers.submit(torch.zeros(4, 4), total)
            assert len(workers._waiting) == number % 3
        assert len(seen) == 6
        assert len(workers.results()) == 8


def test_a_failure_reaches_the_one_who_asked() -> None:
    def fail(tokens: Tensor) -> float:
        raise ZeroDivisionError

    with Workers[float]() as workers:
        workers.submit(torch.zeros(2, 2), fail)
        with pytest.raises(ZeroDivisionError):
            workers.results()


def test_nothing_submitted_gives_nothing() -> None:
    with Workers[float]() as workers:
        assert workers.results() == []


def test_beside_a_model_on_the_processor_no_more_threads_than_pytorch_may_use() -> None:
    assert threads_for(torch.device("cpu")) == torch.get_num_threads()
    assert threads_for(torch.device("cuda")) >= 1
