"""Conditions say what they mean, and nothing else is understood."""

from __future__ import annotations

import pytest
import torch
from tests.models.small import measure_one
from tests.sampling import normal

from rankfall.errors import RequestError
from rankfall.models.condition import AnswerCondition, Condition, parse_condition
from rankfall.models.depth.capture import Place
from rankfall.models.depth.rows import DepthRow, gather
from rankfall.models.verdict.verdict import judge


def measured_condition(text: str) -> Condition:
    found = parse_condition(text)
    assert isinstance(found, Condition)
    return found


@pytest.fixture(scope="module")
def rows() -> list[DepthRow]:
    """Ranks 6, 3 and 5 at layers 0, 1 and 2."""
    basis = torch.linalg.qr(normal(0, 8, 8))[0]
    return gather([measure_one(Place(layer), 0, basis[:rank], []) for layer, rank in enumerate((6, 3, 5))])


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("energy_rank < 4", [1]),
        ("effective_rank < 4", [1]),
        ("centred_unit.rank at 1 < 2.5", [1]),
        ("energy_rank<=5.0001", [1, 2]),
        ("unit.energy_rank at last < 4", []),
        ("raw.rank >= 5 at any", [0, 2]),
        ("raw.rank > 5 at 0", [0]),
        ("centred.rank at 1 < 2.5", [1]),
        ("mean_abs_cosine > .5", []),
        ("rank > -1e0", [0, 1, 2]),
    ],
)
def test_conditions_hold_where_they_should(rows: list[DepthRow], text: str, layers: list[int]) -> None:
    assert [layer for layer, _ in measured_condition(text).failures(rows)] == layers


@pytest.mark.parametrize(
    "text",
    [
        "",
        "energy_rank",
        "energy_rank < ",
        "energy_rank == 4",
        "goodness < 4",
        "best.energy_rank < 4",
        "energy_rank < 4; import os",
        "__import__('os').system('true') < 4",
        "energy_rank at last < 4 at any",
        "energy_rank < nan",
        "energy_rank < 1e9999",
        "energy_rank < 4" + " " * 500,
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="a condition"):
        parse_condition(text)


@pytest.mark.parametrize(
    ("text", "places"),
    [
        ("distinctions lost", ["stream", "output"]),
        (" distinctions  lost at output ", ["output"]),
        ("distinctions reduced", []),
        ("alignment collapsed at stream", []),
    ],
)
def test_answers_of_a_verdict_are_conditions(text: str, places: list[str]) -> None:
    generator = torch.Generator().manual_seed(0)
    wide = torch.randn(2, 20, 40, generator=generator, dtype=torch.float64)
    narrow = wide[..., :3] @ torch.randn(3, 40, generator=generator, dtype=torch.float64)
    measured = [
        measure_one(Place(layer), text, tokens[text], [])
        for layer, tokens in enumerate((wide, narrow))
        for text in range(2)
    ]
    asked = parse_condition(text)
    assert isinstance(asked, AnswerCondition)
    said = asked.said_in(judge("m", gather(measured)).record())
    assert [one["place"] for one in said] == places
    assert all(one["value"] == "lost" for one in said)


@pytest.mark.parametrize("text", ["distinctions collapsed", "alignment lost at last", "tokens lost", "alignment"])
def test_what_no_verdict_says_is_no_condition(text: str) -> None:
    with pytest.raises(RequestError, match="or an answer of the verdict"):
        parse_condition(text)


def test_a_layer_that_is_not_there_is_refused(rows: list[DepthRow]) -> None:
    with pytest.raises(RequestError, match="layers run from 0 to 2"):
        measured_condition("rank < 4 at 9").failures(rows)
