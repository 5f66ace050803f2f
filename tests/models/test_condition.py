"""Conditions say what they mean, and nothing else is understood."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.models.small import measure_one
from tests.sampling import normal

from rankfall.errors import RequestError
from rankfall.models.condition import (
    STATUSES,
    AnswerCondition,
    Checked,
    Condition,
    decided,
    parse_condition,
    require_decidable,
)
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
        ("distinctions not lost", []),
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


@pytest.mark.parametrize(
    "text", ["distinctions collapsed", "alignment lost at last", "tokens lost", "alignment", "distinctions not kept"]
)
def test_what_no_verdict_says_is_no_condition(text: str) -> None:
    with pytest.raises(RequestError, match="an answer of the verdict") as refused:
        parse_condition(text)
    for statuses in (
        "alignment not aligned, aligned, collapsed or depends",
        "distinctions kept, not lost, reduced, lost or depends",
        "domination not dominated, dominated or depends",
    ):
        assert statuses in str(refused.value)
    assert ("MEASURE" in str(refused.value)) == text.startswith("tokens")


def test_every_status_that_a_verdict_prints_can_be_asked_for() -> None:
    from rankfall.models.verdict.findings import QUESTIONS, SEVERITY

    assert STATUSES.keys() == QUESTIONS.keys()
    # Too little text answers no question: such a condition is not checked.
    assert {one for statuses in STATUSES.values() for one in statuses} == {*SEVERITY} - {"too little text"}
    for question, statuses in STATUSES.items():
        for status in statuses:
            for place, words in ((None, ""), ("output", " at output")):
                text = f"{question} {status}{words}"
                assert parse_condition(text) == AnswerCondition(text, question, status, place)
    assert parse_condition("alignment  not  aligned").status == "not aligned"


@pytest.mark.parametrize(
    ("status", "lost", "holds"),
    [
        ("not lost", False, True),
        ("kept", False, True),
        ("reduced", False, True),
        ("reduced", None, False),  # lost in some passages
        ("depends", False, True),  # only whether it is reduced is open
        ("depends", None, False),
        ("lost", True, False),
    ],
)
def test_not_lost_is_all_that_is_surely_not_lost(status: str, lost: bool | None, holds: bool) -> None:
    found = audited({"distinctions": [(status, ["lost"])]})
    found["verdict"]["findings"][0]["places"][0]["decisions"][0] |= {"holds": lost, "reason": "near"}
    held = Checked.of(["distinctions not lost"], found).failed
    assert [at["value"] for one in held for at in one["layers"]] == ([status] if holds else [])


def test_a_layer_that_is_not_there_is_refused(rows: list[DepthRow]) -> None:
    with pytest.raises(RequestError, match="layers measured: 0-2"):
        measured_condition("rank < 4 at 9").failures(rows)


def made_false(condition: str) -> dict[str, Any]:
    return {"condition": condition, "holds": False, "reason": None}


def audited(answers: dict[str, list[tuple[str, list[str]]]], **more: object) -> dict[str, Any]:
    """The record of an audit, as far as conditions read it: by question, each place's status and decisions."""
    findings = [
        {
            "question": question,
            "status": places[0][0],
            "text": "why",
            "places": [
                {"place": name, "layer": 1, "status": status, "decisions": [made_false(one) for one in made]}
                for name, (status, made) in zip(("stream", "output"), places, strict=False)
            ],
        }
        for question, places in answers.items()
    ]
    return {"verdict": {"findings": findings}, "other_stacks": [], "missing": {}, "depth": [], **more}


@pytest.mark.parametrize(
    ("text", "places", "undecided"),
    [
        ("distinctions reduced", [("not lost", ["lost"]), ("not lost", ["lost"])], True),
        ("distinctions depends", [("depends", ["lost"]), ("lost", ["lost"])], False),  # it holds in the stream
        ("distinctions depends at output", [("depends", ["lost"]), ("not lost", ["lost"])], True),
        ("distinctions reduced at output", [("not lost", ["lost"]), ("lost", ["lost"])], False),
        ("distinctions lost", [("not lost", ["lost"]), ("not lost", ["lost"])], False),
        ("distinctions kept", [("not lost", ["lost"]), ("not lost", ["lost"])], True),
        ("distinctions reduced", [("kept", ["lost", "reduced"]), ("kept", ["lost", "reduced"])], False),
    ],
)
def test_what_only_random_weights_decide_does_not_pass_without_them(
    text: str, places: list[tuple[str, list[str]]], undecided: bool
) -> None:
    checked = Checked.of([text], audited({"distinctions": places}, missing={"control random_weights": "no memory"}))
    assert list(checked.unchecked) == ([text] if undecided else [])
    if undecided:
        assert checked.failed == ()
        assert "no random weights to compare with: no memory" in checked.unchecked[text]
        with pytest.raises(RequestError, match="no random weights"):
            decided(text, audited({"distinctions": places}, missing={"controls": "no memory"}))


def test_another_stack_without_controls_leaves_it_open() -> None:
    known = audited({"distinctions": [("kept", ["lost", "reduced"])] * 2})
    other = {"name": "decoder.layers", **audited({"distinctions": [("not lost", ["lost"])] * 2})}
    missing = {"in decoder.layers, control random_weights": "too large"}
    checked = Checked.of(["distinctions reduced"], known | {"other_stacks": [other], "missing": missing})
    assert "in decoder.layers, there are no random weights to compare with: too large" in str(checked.unchecked)


def test_a_stack_that_was_not_measured_leaves_every_condition_open() -> None:
    found = audited({"distinctions": [("kept", ["lost", "reduced"])] * 2}, missing={"depth of decoder": "it broke"})
    checked = Checked.of(["energy_rank < 4", "distinctions lost"], found)
    assert checked.failed == ()
    assert set(checked.unchecked.values()) == {"there is no depth of decoder: it broke"}


def test_a_number_that_is_none_does_not_pass() -> None:
    depth = [{"layer": layer, "unit": {"energy_rank": value}} for layer, value in enumerate((8.0, None, 9.0))]
    found = audited({}, depth=depth)
    for text, undecided in (
        ("energy_rank < 4", True),
        ("energy_rank < 4 at last", False),
        ("energy_rank < 4 at 1", True),
        ("energy_rank > 8.5", False),
    ):
        assert bool(Checked.of([text], found).unchecked) == undecided
    assert "unit.energy_rank is not a number at layer 1" in str(Checked.of(["energy_rank < 4"], found).unchecked)


def test_conditions_that_need_controls_are_refused_before_the_audit() -> None:
    require_decidable(["distinctions lost", "energy_rank < 4"], controls=False)
    require_decidable(["distinctions reduced"], controls=True)
    for text in ("distinctions reduced", "distinctions depends at output", "distinctions kept"):
        with pytest.raises(RequestError, match=rf"controls to decide '{text}'.*add --controls"):
            require_decidable(["energy_rank < 4", text], controls=False)


def decisions(**holds: bool | None) -> dict[str, Any]:
    """A verdict on the stream alone, with these decisions, worst first."""
    made = [
        {
            "condition": name,
            "holds": one,
            "reason": f"the passages disagree: {name} in 3 of 4" if one is None else None,
        }
        for name, one in holds.items()
    ]
    status = next((name for name, one in holds.items() if one), "depends" if None in holds.values() else "kept")
    found = audited({"distinctions": [(status, [])]})
    found["verdict"]["findings"][0]["places"][0]["decisions"] = made
    return found


DISAGREE = "depends in the stream (the passages disagree: {} in 3 of 4)"


@pytest.mark.parametrize(
    ("text", "holds", "told"),
    [
        ("distinctions reduced", {"lost": False, "reduced": None}, DISAGREE.format("reduced")),
        ("distinctions reduced at stream", {"lost": None, "reduced": None}, DISAGREE.format("reduced")),
        ("distinctions kept", {"lost": False, "reduced": None}, DISAGREE.format("reduced")),
        ("distinctions not lost", {"lost": None, "reduced": False}, DISAGREE.format("lost")),
        ("distinctions lost", {"lost": None, "reduced": False}, DISAGREE.format("lost")),
        (
            "distinctions lost",
            {"lost": None, "reduced": True},
            "reduced in the stream (the passages disagree: lost in 3 of 4)",
        ),
        ("distinctions lost", {"lost": False, "reduced": None}, None),
        ("distinctions reduced", {"lost": True, "reduced": None}, None),
        ("distinctions reduced", {"lost": None, "reduced": False}, None),
        ("distinctions reduced at output", {"lost": False, "reduced": None}, None),
        ("distinctions kept", {"lost": None, "reduced": True}, None),
        ("distinctions depends", {"lost": False, "reduced": False}, None),
        ("alignment aligned", {"lost": None, "reduced": None}, None),
    ],
)
def test_an_answer_that_is_open_is_told_though_it_does_not_hold(
    text: str, holds: dict[str, bool | None], told: str | None
) -> None:
    checked = Checked.of([text], decisions(**holds))
    assert (checked.failed, checked.unchecked) == ((), {})
    place = " at stream" if text.endswith("at stream") else ""
    also = f'; "distinctions depends{place}" asks for that' if told and told.startswith("depends") else ""
    assert checked.open == ({} if told is None else {text: f"{told}{also}"})


def test_another_stack_that_is_open_is_named() -> None:
    other = {"name": "decoder.block", **decisions(lost=None, reduced=False)}
    found = decisions(lost=False, reduced=False) | {"other_stacks": [other]}
    assert (
        Checked.of(["distinctions lost"], found)
        .open["distinctions lost"]
        .startswith("depends in the stream of decoder.block (the passages disagree: lost in 3 of 4)")
    )
