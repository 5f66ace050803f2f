"""Cells: the published protocol by default, and every wrong value refused with what to do."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from rankfall.errors import RequestError
from rankfall.store.identity import identity
from rankfall.training.cell import Cell
from rankfall.training.parameters import layout


def test_default_is_the_published_protocol() -> None:
    cell = Cell()
    assert (cell.points, cell.dim, cell.batch, cell.feed_forward) == (16, 64, 256, 2048)
    assert (cell.learning_rate, cell.steps, cell.norm, cell.placement) == (0.01, 100_000, "unit", "post")
    assert (cell.data, cell.recipe, cell.positions, cell.mask) == ("published", "published", "none", "complete")


@pytest.mark.parametrize(("multiplier", "rank", "heads"), [(1, 64, 1), (1, 1, 64), (8, 16, 32), (64, 8, 512)])
def test_heads(multiplier: int, rank: int, heads: int) -> None:
    assert Cell(multiplier=multiplier, rank=rank).heads == heads


def test_concatenated_positions_widen_the_stream() -> None:
    cell = Cell(positions="concatenated", rank=32, multiplier=8)
    assert (cell.width, cell.heads) == (128, 8 * 128 // 32)


def test_parameters_by_hand() -> None:
    """Attention: m copies of four d x d maps with biases; feed-forward; two scalars."""
    d, m, f = 64, 8, 2048
    expected = m * (4 * d * d + 4 * d) + (d * f + f + f * d + d) + 2
    assert layout(Cell(multiplier=8, rank=4)).parameters == expected
    assert layout(Cell(multiplier=8, rank=64)).parameters == expected


def test_plain_values_survive_json() -> None:
    cell = Cell(task="biased:9", points=2, positions="concatenated", value_rank=3)
    assert Cell(**json.loads(json.dumps(dataclasses.asdict(cell)))) == cell


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"rank": 3}, "a rank that divides the width 64; got rank=3; choose among 1, 2, 4"),
    ({"steps": 150}, "steps in multiples of 100.*got steps=150"),
    ({"learning_rate": 0.0}, "learning_rate to be a positive number"),
    ({"learning_rate": float("nan")}, "learning_rate to be a positive number"),
    ({"data": "old"}, "data among published, fresh; got old"),
    ({"recipe": "magic"}, "a recipe among published.* stable.*; got magic; for example stable"),
    ({"recipe": "stabel"}, "got stabel; did you mean stable"),
    (
        {"recipe": "stable", "placement": "peri"},
        "placement=pre, which belongs to the recipe stable; got placement=peri",
    ),
    ({"norm": "batch"}, "a norm among .*got batch"),
    ({"placement": "middle"}, "placement among post, pre"),
    ({"positions": "rotary"}, "positions among none, additive, concatenated"),
    ({"dtype": "float16"}, "dtype among float32, float64"),
    ({"task": "sort"}, "a task among"),
    ({"mask": "diagonal"}, "mask"),
    ({"task": "in-context"}, "a causal mask for the task in-context.*set mask=causal"),
    ({"task": "nearest", "mask": "window:1"}, "every token of the task nearest may attend to a point"),
    ({"layers": 0}, "layers to be a whole number of at least 1"),
    ({"seed": -1}, "seed to be a whole number of at least 0"),
    ({"start": "copies"}, "several layers for start=copies; got layers=1"),
    ({"start": "same", "layers": 3}, "start among apart, copies"),
    ({"warm_up_from": "zero", "steps": 100}, "more than 100 steps for warm_up_from=zero"),
    ({"warm_up_from": "half"}, "warm_up_from among first, zero"),
    ({"points": 1}, "points to be a whole number of at least 2"),
]


@pytest.mark.parametrize(("change", "message"), WRONG, ids=[str(change) for change, _ in WRONG])
def test_wrong_cells(change: dict[str, Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        Cell(**change)


def test_later_fields_leave_older_identities_as_they_were() -> None:
    """The identity of a one-layer cell as committed before `start` and `warm_up_from` were fields."""
    assert identity(Cell(rank=8, multiplier=8)) == "16674e9398936d90"
    deep = Cell(layers=3, rank=8)
    changed = [{"start": "copies"}, {"warm_up_from": "zero"}, {"start": "copies", "warm_up_from": "zero"}]
    assert len({identity(deep), *(identity(dataclasses.replace(deep, **change)) for change in changed)}) == 4


def test_stable_recipe_places_the_norm_before_the_branch() -> None:
    assert Cell(recipe="stable").norm_placement == "pre"
    assert Cell().norm_placement == "post"
    assert Cell(placement="pre").norm_placement == "pre"
    numbers = [layout(Cell(**change)).parameters for change in ({"recipe": "stable"}, {"placement": "pre"}, {})]
    assert numbers[0] == numbers[1] == numbers[2] + 1
