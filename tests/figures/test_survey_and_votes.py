"""Table 1 and the vote figure at their smallest scale: every point and claim that decides holds; pictures."""

from __future__ import annotations

import pytest
from tests.drawing.read import curves, panels_of, same

from rankfall.catalogue import FIGURES
from rankfall.figures.base import FigureOutcome


@pytest.fixture(scope="module")
def votes() -> FigureOutcome:
    return FIGURES["rankfall/vote-quality"].run("smoke")


def test_table1_well_known_models_follow_the_rule() -> None:
    outcome = FIGURES["amsel/table1"].run("smoke")
    assert outcome.agrees
    assert len(outcome.points) >= 20
    assert all(point["published"] == point["ours"] == 1.0 for point in outcome.points)
    assert any("mt5 0.75" in note for note in outcome.notes)
    assert outcome.draw is not None
    assert len(outcome.draw().axes) == 2


def test_vote_quality_claims_hold(votes: FigureOutcome) -> None:
    assert len(votes.claims) == 4
    assert [claim.statement for claim in votes.claims if not claim.holds] == []
    assert all(point["published"] is None for point in votes.points)


def test_vote_quality_is_near_theory_for_many_heads(votes: FigureOutcome) -> None:
    """150 samples at H=1000, d=16: the leading term within 4 standard errors and a fifth for the next term."""
    compared = 0
    for point in votes.points:
        if point["predicted"] is not None and point["heads"] == 1_000:
            error = (point["ours"] * (1 - point["ours"]) / 150) ** 0.5
            assert abs(point["ours"] - point["predicted"]) < 4 * error + 0.2 * point["predicted"]
            compared += 1
    assert compared == 3


def test_vote_quality_picture(votes: FigureOutcome) -> None:
    assert votes.draw is not None
    *laws, last = panels_of(votes.draw())
    for panel, law in zip(laws, ("orthonormal", "independent"), strict=True):
        assert law in panel["title"]
        for heads in (100, 1_000):
            mine = [p for p in votes.points if (p["what"], p["law"], p["heads"]) == ("vote", law, heads)]
            assert same(curves(panel)[f"H = {heads}"], [p["points"] for p in mine], [p["ours"] for p in mine])
    codes = [p for p in votes.points if p["what"] == "code"]
    assert same(curves(last)["N = 8"], [p["code_rank"] / 7 for p in codes], [p["ours"] for p in codes])
