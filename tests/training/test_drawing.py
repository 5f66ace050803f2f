"""Drawing by a compiled program: only one that draws what the plain one draws is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.training.conftest import tiny
from torch import Tensor

from rankfall.training.data import MOST_TIES, Batches

Draw = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
CPU = torch.device("cpu")


def compiling(monkeypatch: pytest.MonkeyPatch, program: Callable[[Draw], Draw]) -> list[int]:
    """Let `program` stand for the compiler; the steps that its result was asked for."""
    asked: list[int] = []

    def compile(draw: Draw, **_: Any) -> Draw:
        made = program(draw)

        def counted(seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            asked.append(int(steps[0]))
            return made(seeds, steps)

        return counted

    monkeypatch.setattr(torch, "compile", compile)
    return asked


def windows(*, data: str, compile: bool) -> list[Tensor]:
    batches = Batches([tiny(data=data)], CPU, compile=compile)
    found = []
    for step in (0, 100, 200):
        batches.fill(step)
        found.append(batches.inputs.clone())
    return found


def test_a_program_that_draws_the_same_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = windows(data="fresh", compile=False)
    asked = compiling(monkeypatch, lambda draw: draw)
    assert all(map(torch.equal, windows(data="fresh", compile=True), expected))
    assert asked == [0, 100, 200]


def test_a_program_that_draws_other_numbers_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = windows(data="fresh", compile=False)
    asked = compiling(monkeypatch, lambda draw: lambda seeds, steps: draw(seeds + 1, steps))
    with pytest.warns(UserWarning, match="which failed here: it draws other numbers$"):
        found = windows(data="fresh", compile=True)
    assert all(map(torch.equal, found, expected))
    assert asked == [0]


@pytest.mark.parametrize(("tokens", "used"), [(1, True), (40, False)])
def test_answers_that_rounding_decides_are_few(monkeypatch: pytest.MonkeyPatch, tokens: int, used: bool) -> None:
    """Of two points that are equally far a compiled program may choose the other, but seldom."""

    def choosing(draw: Draw) -> Draw:
        def drawn(seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            inputs, targets = draw(seeds, steps)
            targets.flatten(0, -2)[:tokens] *= -1.0
            return inputs, targets

        return drawn

    compiling(monkeypatch, choosing)
    cell = tiny(data="fresh", batch=64, points=16)
    batches = Batches([cell], CPU, compile=True)
    assert 1 < MOST_TIES * 100 * 64 * 16 < 40
    if used:
        batches.fill(0)
    else:
        with pytest.warns(UserWarning, match="it draws other numbers$"):
            batches.fill(0)
    assert batches.compiled is used


def test_a_program_that_fails_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(draw: Draw) -> Draw:
        def fail(seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            raise RuntimeError("no compiler\nand more")

        return fail

    expected = windows(data="fresh", compile=False)
    asked = compiling(monkeypatch, failing)
    with pytest.warns(UserWarning, match="which failed here: no compiler$"):
        found = windows(data="fresh", compile=True)
    assert all(map(torch.equal, found, expected))
    assert asked == [0]


def test_too_little_memory_stays_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(draw: Draw) -> Draw:
        def fail(seeds: Tensor, steps: Tensor) -> tuple[Tensor, Tensor]:
            raise torch.cuda.OutOfMemoryError

        return fail

    compiling(monkeypatch, full)
    with pytest.raises(torch.cuda.OutOfMemoryError):
        windows(data="fresh", compile=True)


def test_what_comes_back_is_drawn_without_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = compiling(monkeypatch, lambda draw: draw)
    windows(data="published", compile=True)
    assert asked == []
