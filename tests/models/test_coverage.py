"""The table of architectures covers the library, and what it says can be measured again."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rankfall.api.coverage import coverage
from rankfall.cli.main import app
from rankfall.errors import RequestError
from rankfall.models.architectures.coverage import (
    OUTCOMES,
    PARTS,
    check_architecture,
    committed_table,
    coverage_table,
    installed_architectures,
    known_type,
    most_used,
)


def test_reach_is_read_from_the_source() -> None:
    reach = installed_architectures()
    assert len(reach) > 400
    assert reach["llama"] == reach["bert"] == reach["vit"] == "interface"
    assert reach["bloom"] == reach["gptj"] == "bypasses"
    assert reach["mamba"] == "no attention of its own"


def test_committed_table_meets_its_target() -> None:
    outcomes = [row["outcome"] for row in committed_table().values()]
    assert outcomes.count("exact") >= 240
    assert outcomes.count("differs") == 0


def test_every_installed_architecture_is_listed() -> None:
    rows = coverage_table()
    assert {row["model_type"] for row in rows} == set(installed_architectures())


def test_an_outcome_that_no_row_can_have_is_refused() -> None:
    assert {row["outcome"] for row in coverage_table()} <= set(OUTCOMES)
    with pytest.raises(RequestError, match=r"exact; exact, weights only; .*; not measured; got 'nonsense'"):
        coverage(outcome="nonsense")
    for part_of_a_word in ("e", "artial", "exac"):
        with pytest.raises(RequestError, match="an outcome, or a word of one"):
            coverage(outcome=part_of_a_word)
    for words in ("partial", "weights only", "exact, partial", "not"):
        assert all(words in row["outcome"] for row in coverage(outcome=words).architectures)


def test_a_choice_of_nothing_is_refused_with_what_there_is() -> None:
    counted = len(coverage_table())
    with pytest.raises(
        RequestError, match=rf"one of {counted} architectures has; got 'differs', which none has; there are exact \("
    ):
        coverage(outcome="differs")
    with pytest.raises(RequestError, match=r"one of 60 architectures has; got 'not run', which none has"):
        coverage(outcome="not run", most_used=True)


def test_types_are_not_chosen_from_the_table_at_the_same_time() -> None:
    for more in ({"outcome": "exact"}, {"most_used": True}):
        with pytest.raises(
            RequestError, match="either model types, which are checked now, or a choice from the table"
        ):
            coverage(["bert"], **more)  # type: ignore[arg-type]


def test_every_name_is_known_before_anything_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    monkeypatch.setattr("rankfall.models.architectures.coverage.check_architecture", seen.append)
    with pytest.raises(RequestError, match="got LLAMMA; near it are llama"):
        coverage(["bert", "LLAMMA"])
    with pytest.raises(RequestError, match="got ' '; rankfall coverage lists them all"):
        coverage(["bert", " "])
    assert seen == []


def test_a_type_that_is_named_twice_is_measured_once() -> None:
    assert [row["model_type"] for row in coverage(["bert", "bert"]).architectures] == ["bert"]


def test_the_sixty_most_used_are_listed_with_their_reasons_and_meet_the_target() -> None:
    listed = most_used()
    assert len(listed) == 60
    assert set(listed) <= set(installed_architectures())
    assert all(listed.values())
    table = committed_table()
    rows = [table[name] for name in listed]
    assert all(row["depth"] == "exact" for row in rows), "one of them cannot be audited at all"
    assert sum(all(row[part] == "exact" for part in PARTS) for row in rows) >= 55


def test_what_is_not_exact_has_a_reason() -> None:
    for row in committed_table().values():
        if row["outcome"] in ("not built", "not run"):
            assert row["note"], row
            continue
        for part in PARTS:
            assert row[part] in ("exact", "partial", "missing")
            assert row[part] == "exact" or f"{part}: " in row["reasons"] or "no audit" in row["reasons"], row


# One of each kind: plain, hybrid, sparse selection, encoder-decoder, bypassing, two towers, images, sound, text with
# images, a model of several streams a token.
HANDFUL = {
    "gemma3_text": "exact",
    "qwen3_next": "exact",
    "deepseek_v32": "exact",
    "t5": "exact",
    "mpt": "exact, weights only",
    "clip": "exact",
    "dinov3_vit": "exact",
    "wav2vec2": "exact",
    "llava": "exact",
}


@pytest.mark.parametrize(("model_type", "outcome"), HANDFUL.items())
def test_auditing_again_gives_a_complete_audit(model_type: str, outcome: str) -> None:
    checked = check_architecture(model_type)
    row = committed_table()[model_type]
    assert checked.outcome == outcome == row["outcome"]
    assert checked.complete, checked.reasons
    assert {part: row[part] for part in PARTS} == dict.fromkeys(PARTS, "exact")
    assert checked.calls == int(row["calls"])


def test_a_part_that_cannot_be_had_is_graded_with_its_reason() -> None:
    checked = check_architecture("jetmoe")
    assert (checked.depth, checked.masks, checked.heads, checked.controls) == ("exact", "exact", "missing", "exact")
    assert "self-check (linearity)" in checked.reasons


def test_an_audit_that_raises_is_in_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr("rankfall.models.architectures.coverage.audit", fail)
    checked = check_architecture("bert")
    assert checked.outcome == "exact"
    assert not checked.complete
    assert checked.reasons == "no audit: ZeroDivisionError: on purpose"


def test_command_lists_and_checks() -> None:
    runner = CliRunner()
    listed = json.loads(runner.invoke(app, ["coverage", "--json", "--outcome", "partial"]).stdout)
    assert all("partial" in row["outcome"] for row in listed["architectures"])
    used = json.loads(runner.invoke(app, ["coverage", "--json", "--most-used"]).stdout)
    assert {row["model_type"] for row in used["architectures"]} == set(most_used())
    checked = runner.invoke(app, ["coverage", "bert", "jetmoe", "--json"])
    assert checked.exit_code == 1
    rows = json.loads(checked.stdout)["architectures"]
    assert [row["heads"] for row in rows] == ["exact", "missing"]
    assert runner.invoke(app, ["coverage", "bert", "--json"]).exit_code == 0


def test_unknown_types_are_refused() -> None:
    with pytest.raises(
        ValueError, match="required a model type of the installed library; got bertt; near it are bert"
    ):
        known_type("bertt")
