"""Stacks: each model as if alone, nothing spreads, and a stopped one goes on as if it had not."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from rankfall.catalogue import TASKS
from rankfall.errors import RequestError
from rankfall.tasks.base import Task
from rankfall.training.cell import CHUNK, Cell
from rankfall.training.parameters import layout
from rankfall.training.plan import stack_bytes
from rankfall.training.stack import Stack, stack_key

SMALL: dict[str, Any] = {"dim": 8, "points": 4, "batch": 8, "feed_forward": 16, "steps": 200, "dtype": "float64"}
MIXED = [(8, 0, 0.01, "published"), (1, 1, 0.02, "fresh"), (4, 0, 0.01, "fresh"), (1, 0, 0.005, "published")]
VARIANTS: dict[str, dict[str, Any]] = {
    "published": {},
    "deep, wide": {"layers": 2, "multiplier": 2},
    "concatenated": {"positions": "concatenated", "position_width": 8},
    "additive, pre, layer": {"positions": "additive", "placement": "pre", "norm": "layer"},
    "nearest, rms": {"task": "nearest", "norm": "rms"},
    "in-context": {"task": "in-context", "mask": "causal", "recipe": "stable"},
    "window": {"mask": "window:1", "norm": "none", "learning_rate": 0.001},
}


def mixed(**change: Any) -> list[Cell]:
    """Four cells of different rank, seed, learning rate and data, in no order."""
    return [
        Cell(**{**SMALL, "learning_rate": rate, **change}, rank=rank, seed=seed, data=data)
        for rank, seed, rate, data in MIXED
    ]


def spelled(task: Task) -> str:
    """How a grid names a task with its parameters."""
    values = dataclasses.astuple(task)
    return ":".join([task.name, *(str(value) for value in values if value is not None)])


@pytest.mark.parametrize("example", [one for kind in TASKS for one in kind.examples()], ids=repr)
def test_every_listed_task_can_be_trained(example: tuple[Task, int, int]) -> None:
    task, points, dim = example
    cell = Cell(
        task=spelled(task), points=points, dim=dim, rank=1, feed_forward=8, batch=64, steps=CHUNK,
        mask="causal" if task.causal else "complete", learning_rate=0.003, dtype="float64",
    )  # fmt: skip
    assert cell.task_object == task
    stack = Stack([cell])
    before = stack.loss(stack.layout.views(stack.state()["rows"]), *stack.batches.evaluation(0))
    stack.advance()
    after = stack.loss(stack.layout.views(stack.state()["rows"]), *stack.batches.evaluation(0))
    assert float(after) < float(before), "a hundred steps teach something"


def same_weights(first: Stack, i: int, second: Stack, j: int) -> float:
    mine, other = first.weights(i), second.weights(j)
    assert mine.keys() == other.keys()
    # As one tensor: its maximum is NaN when any entry is, where Python's own max would pass it over.
    return float(torch.cat([(mine[name] - other[name]).abs().flatten() for name in mine]).max())


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS.keys())
def test_stacked_equals_alone(variant: dict[str, Any]) -> None:
    """Hundred steps in float64 to 1e-10, ranks, seeds, rates and data mixed."""
    cells = mixed(**variant)
    stack = Stack(cells)
    rows = stack.advance()
    for index, cell in enumerate(cells):
        alone = Stack([cell])
        (row,) = alone.advance()
        assert row["loss"] == pytest.approx(rows[index]["loss"], abs=1e-10)
        assert same_weights(stack, index, alone, 0) < 1e-10


def test_models_of_one_seed_differ_only_by_what_differs() -> None:
    stack = Stack([Cell(**SMALL, rank=2, seed=3), Cell(**SMALL, rank=2, seed=3), Cell(**SMALL, rank=2, seed=4)])
    stack.advance()
    assert same_weights(stack, 0, stack, 1) == 0.0
    assert same_weights(stack, 0, stack, 2) > 0.1


def test_divergence_stays_with_its_model() -> None:
    """A learning rate that overflows float32 stops one model; the others are the same bit for bit."""
    calm = [Cell(**{**SMALL, "dtype": "float32", "norm": "none"}, rank=r, learning_rate=0.001) for r in (1, 2, 8)]
    wild = dataclasses.replace(calm[1], learning_rate=1e30)
    quiet, loud = Stack(calm), Stack([calm[0], wild, calm[2]])
    for _ in range(2):
        expected, rows = quiet.advance(), loud.advance()
    assert [row["diverged"] for row in rows] == [False, True, False]
    assert [expected[i]["loss"] for i in (0, 2)] == [rows[i]["loss"] for i in (0, 2)]
    assert same_weights(quiet, 0, loud, 0) == same_weights(quiet, 2, loud, 2) == 0.0
    assert [summary["status"] for summary in loud.summaries()] == ["done", "diverged", "done"]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_resume_is_bit_identical(dtype: str) -> None:
    cells = mixed(dtype=dtype, steps=300)
    unbroken, first = Stack(cells), Stack(cells)
    history = [unbroken.advance() for _ in range(3)]
    first.advance()
    second = Stack(cells)
    second.restore(first.state())
    assert second.chunks_done == 1
    assert [second.advance() for _ in range(2)] == history[1:]
    assert second.summaries() == unbroken.summaries()
    assert all(torch.equal(value, unbroken.state()[name]) for name, value in second.state().items())


def test_restore_refuses_other_stacks() -> None:
    with pytest.raises(RequestError, match="a state whose rows has shape"):
        Stack(mixed()).restore(Stack(mixed(layers=2)).state())
    with pytest.raises(RequestError, match="nothing of that name"):
        Stack(mixed()).restore({})


def test_published_data_repeat_and_fresh_do_not() -> None:
    stack = Stack([Cell(**SMALL, rank=8, data="published"), Cell(**SMALL, rank=8, data="fresh")])
    batches = []
    for step in (0, CHUNK):
        stack.batches.fill(step)
        batches.append(stack.batches.at(torch.tensor([7]))[0].clone())
    assert torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][0], batches[0][1])
    assert not torch.equal(batches[0][1], batches[1][1])


def test_windows_do_not_change_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches drawn one by one are those drawn a hundred at a time."""
    cells = mixed()
    whole = Stack(cells)
    monkeypatch.setattr("rankfall.training.data.WINDOW_BYTES", {"cpu": 1})
    single = Stack(cells)
    assert (whole.batches.window, single.batches.window) == (CHUNK, 1)
    assert whole.advance() == single.advance()


def test_rows_and_summaries() -> None:
    cells = mixed()
    stack = Stack(cells)
    first, second = stack.advance(), stack.advance()
    assert [row["step"] for row in (first[0], second[0])] == [100, 200]
    assert [row["learning_rate"] for row in first] == [cell.learning_rate for cell in cells]
    assert all(0 < row["fresh"] < 4 for row in second)
    for cell, summary, early, late in zip(cells, stack.summaries(), first, second, strict=True):
        assert summary["mse_best"] == min(early["loss"], late["loss"])
        assert summary["mse_final"] == late["loss"]
        assert summary["parameters"] == layout(cell).parameters
        assert summary["mse_fresh_error"] < 0.1
        assert summary["status"] == "done"
    with pytest.raises(RequestError, match="a stack with chunks left of its 2; got 2 done"):
        stack.advance()


def test_training_lowers_the_loss() -> None:
    cell = Cell(dim=8, points=4, batch=64, feed_forward=32, rank=8, steps=600, data="fresh")
    stack = Stack([cell])
    losses = [stack.advance()[0]["loss"] for _ in range(6)]
    assert losses[-1] < 0.5 * losses[0]


def test_keys() -> None:
    cell = Cell(**SMALL, rank=8)
    together = [
        dataclasses.replace(cell, **change)
        for change in ({"rank": 1}, {"seed": 5}, {"learning_rate": 0.1}, {"data": "fresh"})
    ]
    assert {stack_key(other) for other in together} == {stack_key(cell)}
    apart = [
        dataclasses.replace(cell, **change)
        for change in ({"multiplier": 2}, {"layers": 2}, {"value_rank": 2}, {"recipe": "stable"}, {"steps": 100})
    ]
    assert len({stack_key(other) for other in [cell, *apart]}) == 6
    with pytest.raises(RequestError, match="cells of one stack key; got 2 keys"):
        Stack([cell, apart[0]])
    with pytest.raises(RequestError, match="at least one cell"):
        Stack([])


def test_memory_grows_with_models_and_width() -> None:
    one = stack_bytes([Cell(multiplier=64, rank=8)], "cpu")
    # Four seeds: four times the activations, but what drawing takes in passing is there once.
    assert 2 * one < stack_bytes([Cell(multiplier=64, rank=8, seed=s) for s in range(4)], "cpu") < 4 * one
    assert stack_bytes([Cell(multiplier=1, rank=8)], "cpu") < one
