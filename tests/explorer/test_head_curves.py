"""The second tab: floors, predicted errors and the planner's table are those of the commands that it shows."""

from __future__ import annotations

import pytest

from rankfall.explorer.head_curves import (
    HEAD_COUNTS,
    draw_heads,
    draw_ranks,
    head_curves,
    plan_rows,
    plan_table,
    possible,
    summary,
)
from rankfall.explorer.same_result import head_commands, head_python
from rankfall.explorer.state import HeadState
from tests.explorer.calls import printed_by_command, printed_by_python, series_of

STATES = [HeadState(), HeadState(dim=16, rank=64, heads=256, layers=2, context=64)]


@pytest.mark.parametrize("state", STATES, ids=["usual", "rank-above-width"])
def test_the_shown_commands_and_python_give_the_same_numbers(state, capsys) -> None:
    curves = head_curves(state)
    bounds, plan = head_commands(state)
    found = printed_by_command(bounds, capsys)
    assert (found["mse_lower_bound"], found["baseline"]) == (curves.floor, curves.baseline)
    candidates = printed_by_command(plan, capsys)["candidates"]
    shown = plan_rows(state.dim, state.layers, state.context)
    assert len(shown) == len(candidates) > 0
    for ours, theirs in zip(shown, candidates, strict=True):
        assert ours == {name: theirs[name] for name in ours}
    assert printed_by_python(head_python(state)) == [["floor", str(curves.floor)]]


def test_curves_pass_through_the_chosen_point() -> None:
    state = HeadState(dim=32, rank=4, heads=16)
    curves = head_curves(state)
    place = HEAD_COUNTS.index(16)
    assert curves.floors[place] == curves.floor
    assert all(curves.predicted[design][place] == value for design, value in curves.predicted_here.items())
    assert list(curves.floors) == sorted(curves.floors, reverse=True)
    assert [(rank, heads) for rank, heads, _ in curves.by_rank] == [(r, 32 // r) for r in (1, 2, 4, 8, 16, 32)]
    assert curves.by_rank[-1][2] == 0.0
    assert series_of(draw_heads(state, curves))[-1]["y"] == [curves.floor]
    assert series_of(draw_ranks(state, curves))[-1]["x"] == [4]


def test_a_rank_above_the_width_is_the_width() -> None:
    assert possible(STATES[1]).rank == 16
    assert summary(STATES[1], head_curves(STATES[1]))[0] == ("lower bound for any such heads", "0")


def test_the_table_is_in_units_that_people_read() -> None:
    rows = plan_rows(768, 12, 1024)
    table = plan_table(rows)
    assert len(table["rows"]) == len(rows)
    first = dict(zip(table["columns"], table["rows"][0], strict=True))
    assert (first["heads"], first["rank"]) == (12, 64)
    assert first["million parameters"] == pytest.approx(rows[0]["parameters"] / 1e6, abs=0.005)
