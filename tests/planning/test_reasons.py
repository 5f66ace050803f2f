"""The printed reason is the one that decided: text, a lower error, or as low an error with more heads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

import rankfall
from rankfall.planning.by_matches import EQUAL_ERRORS
from rankfall.planning.decision import recommend
from rankfall.planning.evidence import Estimate
from rankfall.planning.recommendation import EQUAL_TEXT, Recommendation

EQUAL, LOWER, RULED_OUT = "count as equal", "that of the usual choice", "language models rule out"


def advice(
    errors: Mapping[int, float],
    text: Mapping[int, tuple[float, float]],
    usual: int,
    outside: tuple[str, ...] = (),
    asked: bool = True,
) -> Recommendation:
    """Rows of 1024 / rank heads, with their errors at any number of directions, mean text losses and lower ends."""
    ranks = [usual, *(rank for rank in errors if rank != usual)]
    rows = [{"heads": 1024 // rank, "rank": rank, "kv_cache_bytes": 1.0, "flops": 1.0} for rank in ranks]

    def error_at(row: Any, directions: int) -> Estimate:
        return Estimate(errors[row["rank"]], 0.0, 1.0)

    def text_at(row: Any) -> Estimate | None:
        if row["rank"] not in text:
            return None
        mean, low = text[row["rank"]]
        return Estimate(mean, low, 2 * mean, outside, decides=not outside)

    return recommend(rows, 32, error_at, text_at=text_at, asked=asked)


def test_as_low_an_error_with_more_heads_is_said_to_be_that() -> None:
    """The recommended row has the higher error, by less than counts."""
    said = advice({64: 0.023, 32: 0.024}, {}, usual=64)
    assert said.rank == 32
    assert said.reason == (
        "in matches of 32 directions its trained error, 0.024, and that of the usual choice, 0.023, count as equal "
        "(within 0.05 of the lowest), and of such rows it has most heads, 32 instead of 16; a higher rank gains "
        "nothing in matches of 32 directions and leaves 16 heads of rank 64"
    )


@pytest.mark.parametrize(("gap", "rank"), [(EQUAL_ERRORS * 0.9, 32), (EQUAL_ERRORS * 1.1, 64)])
def test_a_lower_error_is_the_reason_only_beyond_the_tolerance(gap: float, rank: int) -> None:
    said = advice({32: 0.1 + gap, 64: 0.1}, {}, usual=32)
    assert said.rank == rank
    assert (f"{LOWER} 0.16, more than 0.05 above the lowest, 0.1" in said.reason) == (rank == 64)
    assert EQUAL not in said.reason


def test_the_lowest_error_that_ruled_out_the_usual_choice_need_not_be_the_chosen_one() -> None:
    said = advice({16: 0.16, 32: 0.14, 64: 0.1}, {}, usual=16)
    assert said.rank == 32
    assert "error is 0.14, that of the usual choice 0.16, more than 0.05 above the lowest, 0.1" in said.reason


def test_a_usual_choice_left_out_for_text_is_said_to_be_that() -> None:
    said = advice({16: 0.029, 32: 0.026, 64: 0.024}, {16: (0.04, 0.03), 32: (0.0104, 0.0), 64: (0.0, 0.0)}, usual=16)
    assert said.rank == 32
    assert said.reason == (
        "language models rule out 64 heads of rank 16 (they lose 4.00%, surely over 1%: at least 3.00%) and lose "
        "1.04% here; a higher rank gains nothing in matches of 32 directions and leaves 16 heads of rank 64, but it "
        "gains on text: language models lose 0.00% with 16 heads of rank 64, 1.04% here"
    )


def test_a_usual_choice_left_out_beside_the_row_that_would_be_taken_is_named_too() -> None:
    said = advice({8: 0.02, 16: 0.02, 32: 0.02}, {8: (0.09, 0.06), 16: (0.04, 0.03), 32: (0.0, 0.0)}, usual=16)
    assert said.rank == 32
    assert said.reason == (
        "language models rule out 64 heads of rank 16 (they lose 4.00%, surely over 1%: at least 3.00%) and 128 "
        "heads of rank 8 (they lose 9.00%, surely over 1%: at least 6.00%) and lose 0.00% here"
    )


def test_a_higher_rank_that_gains_in_matches_is_not_said_to_gain_nothing() -> None:
    """Text alone ruled it out."""
    said = advice({32: 0.3, 64: 0.1}, {32: (0.0, 0.0), 64: (0.04, 0.03)}, usual=32)
    assert said.usual
    assert said.reason.startswith("language models rule out 16 heads of rank 64")
    assert "gains nothing" not in said.reason


def test_text_that_could_be_equal_leaves_nothing_out_and_is_no_reason() -> None:
    """The same means, the lower end of the range at 1 percent."""
    said = advice({16: 0.029, 32: 0.026}, {16: (0.04, EQUAL_TEXT), 32: (0.0, 0.0)}, usual=32)
    assert said.rank == 16
    assert RULED_OUT not in said.reason
    assert EQUAL in said.reason
    assert "surely" in said.criterion
    assert "the lower end of the range is above 1%" in said.criterion


def test_text_is_a_reason_to_keep_the_usual_choice() -> None:
    """More heads would be taken without it."""
    said = advice({16: 0.02, 32: 0.02}, {16: (0.04, 0.03), 32: (0.0, 0.0)}, usual=32)
    assert said.usual
    assert said.reason == (
        "language models rule out 64 heads of rank 16 (they lose 4.00%, surely over 1%: at least 3.00%) and lose "
        "0.00% here"
    )


def test_text_that_ruled_out_the_lowest_error_is_named() -> None:
    """Without rank 128 what counts as equal to the lowest error is another: rank 32, not 64."""
    said = advice({64: 0.13, 32: 0.17, 128: 0.09}, {128: (0.04, 0.03), 32: (0.0, 0.0), 64: (0.0, 0.0)}, usual=64)
    assert said.rank == 32
    assert "language models rule out 8 heads of rank 128 (they lose 4.00%" in said.reason
    assert "leaves 16 heads of rank 64" in said.reason, "rank 128 gains in matches"
    assert EQUAL in said.reason


def test_text_beyond_the_evidence_is_no_reason() -> None:
    said = advice({16: 0.02, 32: 0.02}, {16: (0.04, 0.03), 32: (0.0, 0.0)}, usual=32, outside=("far",))
    assert said.rank == 16
    assert RULED_OUT not in said.reason
    assert "gains on text" not in said.reason
    assert "a cost above 1%, even at the lower end of the range; of these rows 32 heads of rank 32" in said.language


def test_where_text_would_leave_no_row_that_is_said() -> None:
    said = advice({16: 0.02, 32: 0.02}, {16: (0.08, 0.07), 32: (0.04, 0.03)}, usual=16)
    assert said.rank == 16
    assert said.reason.startswith("language models surely lose over 1% with every row, so none was left out for it;")
    assert "even at the lower end of the range; of these rows 32 heads of rank 32 lose least, 4.00%" in said.language
    assert RULED_OUT not in said.reason


@pytest.mark.parametrize(("mean", "cost"), [(0.0205, True), (0.0095, False)])
def test_a_row_that_loses_more_than_counts_on_average_has_a_cost(mean: float, cost: bool) -> None:
    said = advice({64: 0.02, 32: 0.02}, {64: (0.0, 0.0), 32: (mean, 0.0)}, usual=64)
    assert said.rank == 32
    assert ("a cost above 1%, though not at the lower end of the range" in said.language) == cost
    assert "of these rows 16 heads of rank 64 lose least, 0.00%" in said.language


def test_a_higher_rank_gains_on_text_only_where_it_loses_less() -> None:
    said = advice({32: 0.02, 64: 0.02}, {32: (0.0, 0.0), 64: (0.004, 0.0)}, usual=32)
    assert said.reason == "a higher rank gains nothing in matches of 32 directions and leaves 16 heads of rank 64"


def test_offered_rows_have_their_cost_on_text() -> None:
    """Committed models: rank 32 loses 2 percent at width 256, rank 128 a third of one."""
    below, above = (
        next(line for line in rankfall.plan(256, heads=4, time=False).recommendation["changes"] if start in line)
        for start in ("no more than 32", "128 directions or more")
    )
    assert below.endswith("8 heads of rank 32, at a text loss of 2.05%")
    assert "text loss" not in above


@pytest.mark.parametrize(
    ("asked", "because"),
    [
        ({"width": 256, "directions": 32}, "its trained error, 0.024, and that of the usual choice, 0.023, count as"),
        (
            {"width": 512, "heads": 32, "directions": 16},
            "because language models rule out 32 heads of rank 16 (they lose 4.02%, surely",
        ),
        (
            {"width": 768, "directions": 96},
            "its trained error is 0.024, that of the usual choice 0.35, more than 0.05",
        ),
    ],
    ids=["heads", "text", "error"],
)
def test_the_committed_evidence_gives_each_of_the_reasons(asked: dict[str, int], because: str) -> None:
    first, second, *_ = rankfall.plan(**asked, time=False).reasons()  # type: ignore[arg-type]
    assert because in first
    assert second.startswith("language models: with"), "costs stand beside the reason"


SAME = dict.fromkeys((16, 32, 64, 128), 0.02)


def by_text(text: Mapping[int, tuple[float, float]], usual: int, outside: tuple[str, ...] = ()) -> Recommendation:
    """No directions were asked about: errors cannot decide, whatever they are."""
    first, second = (
        advice(errors, text, usual, outside, asked=False) for errors in (SAME, {**SAME, usual: 0.9, 16: 0.0})
    )
    assert (first.heads, first.rank, first.decided_by) == (second.heads, second.rank, second.decided_by)
    return first


def test_a_usual_choice_that_surely_loses_gives_way_to_the_row_that_loses_least() -> None:
    said = by_text({16: (0.08, 0.07), 32: (0.04, 0.001), 64: (0.0, 0.0), 128: (0.002, 0.0)}, usual=32)
    assert (said.rank, said.usual, said.decided_by) == (64, False, "language models")
    assert said.reason == ("language models lose 4.00% with 32 heads of rank 32 (0.10% to 8.00%), and 0.00% here")
    assert "32 heads of rank 32, which would be taken without them, lose 4.00%" in said.language


@pytest.mark.parametrize(
    ("cost", "because"),
    [
        ((EQUAL_TEXT, 0.005), "less than the 1% that counts"),
        ((0.04, 0.0), "perhaps nothing: more seeds or texts would tell"),
    ],
)
def test_a_usual_choice_that_may_not_lose_stays(cost: tuple[float, float], because: str) -> None:
    """A row that loses less is there."""
    said = by_text({32: cost, 64: (0.0, 0.0)}, usual=32)
    assert (said.rank, said.usual, said.decided_by) == (32, True, "language models")
    assert said.reason.endswith(because)
    assert said.words == "32 heads of rank 32, the usual choice"


def test_a_usual_choice_that_loses_less_than_all_others_stays() -> None:
    said = by_text({16: (0.09, 0.08), 32: (0.04, 0.03)}, usual=32)
    assert said.usual
    assert said.reason.endswith("and no less with any other row of the same cost")


@pytest.mark.parametrize(
    ("text", "outside"), [({64: (0.0, 0.0)}, ()), ({32: (0.04, 0.03), 64: (0.0, 0.0)}, ("far",))]
)
def test_without_evidence_the_usual_choice_stays_and_says_so(text: Any, outside: tuple[str, ...]) -> None:
    said = by_text(text, usual=32, outside=outside)
    assert (said.rank, said.usual, said.decided_by) == (32, True, "nothing")
    assert said.words.endswith("for want of evidence")
    assert f"of language models: {outside[0] if outside else 'none are known'}" in said.reason


@pytest.mark.parametrize(
    ("asked", "chosen"),
    [
        ({"width": 512, "heads": 32}, (8, 64)),
        ({"width": 768, "heads": 48}, (12, 64)),
        ({"width": 512, "heads": 8}, (8, 64)),
        ({"width": 512, "heads": 4}, (4, 128)),
        ({"width": 2048, "heads": 128}, (128, 16)),
        ({"width": 64, "heads": 4}, (4, 16)),
    ],
    ids=str,
)
def test_the_plan_does_not_repeat_what_it_was_told(asked: dict[str, int], chosen: tuple[int, int]) -> None:
    """Committed models: rank 16 loses 4 percent at 512, and up to twice that width; rank 128 nothing that counts."""
    said = rankfall.plan(**asked, time=False).recommendation  # type: ignore[arg-type]
    assert (said["heads"], said["rank"]) == chosen
    assert said["decided_by"] == ("nothing" if asked["width"] in (64, 2048) else "language models")
