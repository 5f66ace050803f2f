"""Claims on head rank in language models: each holds on rows made to show it and fails on rows made to refute it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from rankfall.figures.base import Claim
from rankfall.figures.text_rank_claims import best_rank, shared_width_curves, text_rank_claims

BOWL = {4: 1.10, 16: 1.00, 64: 1.02, 128: 1.03}


def rows_of(
    losses: Mapping[int, float], width: int = 128, spread: float = 0.0, **changed: Any
) -> list[dict[str, Any]]:
    """Two seeds of every rank, `spread` above and below the loss."""
    return [
        {
            "corpus": "c0", "width": width, "rank": rank, "heads": width // rank, "key_heads": width // rank,
            "value_rank": rank, "learning_rate": 0.003, "seed": seed, "status": "done",
            "budget": "parameters=1e+06 by feed_forward", "nats_per_byte": loss + sign * spread,
            "token_rank_last": 10.0 + rank, **changed,
        }
        for rank, loss in losses.items()
        for seed, sign in ((0, 1), (1, -1))
    ]  # fmt: skip


def claim(rows: list[dict[str, Any]], part: str) -> Claim:
    (found,) = [one for one in text_rank_claims(rows, {"c0": "prose"}) if part in one.statement]
    return found


def test_a_bowl_meets_every_claim_of_one_width() -> None:
    claims = text_rank_claims(rows_of(BOWL), {"c0": "prose"})
    assert [one.holds for one in claims] == [True, True, True]
    assert all(one.statement.startswith("prose, d = 128") for one in claims)
    assert "r* = 16" in claims[1].evidence
    assert "2 seeds" in claims[0].evidence


@pytest.mark.parametrize("best", [4, 128])
def test_a_best_rank_at_an_end_refutes_an_interior_best(best: int) -> None:
    assert not claim(rows_of({**BOWL, best: 0.9}), "lies between").holds


def test_an_end_that_seeds_cannot_tell_from_the_best_refutes_it() -> None:
    assert claim(rows_of(BOWL, spread=0.001), "lies between").holds
    # standard error of a mean of two seeds: the spread itself; of a difference: 0.01 sqrt 2, above half of 0.02
    assert not claim(rows_of({**BOWL, 128: 1.02}, spread=0.01), "lies between").holds


def test_one_seed_has_the_spread_of_other_curves() -> None:
    lone = [row for row in rows_of({**BOWL, 128: 1.001}, width=512) if row["seed"] == 0]
    assert "512" in claim(lone, "lies between").statement
    assert claim(lone, "lies between").holds, "with nothing to go by every difference counts"
    for spread, holds in ((0.0001, True), (0.01, False)):
        (found,) = [
            one
            for one in text_rank_claims(lone + rows_of(BOWL, spread=spread), {"c0": "prose"})
            if "d = 512: the best rank lies between" in one.statement
        ]
        assert found.holds == holds


def test_low_rank_within_a_hundredth_refutes_its_cost() -> None:
    assert not claim(rows_of({**BOWL, 4: 1.009}), "too little rank").holds
    assert claim(rows_of({**BOWL, 4: 1.011}), "too little rank").holds


def test_token_rank_that_does_not_rise_refutes_it() -> None:
    flat = [{**row, "token_rank_last": -float(row["rank"])} for row in rows_of(BOWL)]
    assert not claim(flat, "rank of tokens").holds
    unknown = [{**row, "token_rank_last": None} for row in flat]
    assert len(text_rank_claims(unknown, {})) == 2


def test_the_share_of_the_width_falls_or_does_not() -> None:
    same_rank = rows_of(BOWL) + rows_of(BOWL, width=512)
    assert claim(same_rank, "share of the width").holds
    same_share = rows_of(BOWL) + rows_of({**BOWL, 64: 0.99}, width=512)
    assert not claim(same_share, "share of the width").holds


def test_only_heads_that_share_the_width_at_equal_parameters_count() -> None:
    others = [
        *rows_of({16: 0.5}, value_rank=32),
        *rows_of({16: 0.5}, heads=3),
        *rows_of({16: 0.5}, key_heads=1),
        *rows_of({16: 1.5}, learning_rate=0.1),
        *rows_of({16: 0.5}, status="diverged"),
        *rows_of({16: 0.5}, budget="step_seconds=0.01 by feed_forward"),
    ]
    (curve,) = shared_width_curves(rows_of(BOWL) + others)
    assert {rank: len(models) for rank, models in curve.models.items()} == dict.fromkeys(BOWL, 2)
    assert best_rank(curve.models) == 16
    assert text_rank_claims(rows_of({4: 1.0, 8: 1.0, 16: 1.0}), {}) == [], "too few ranks decide nothing"


def test_every_setting_is_judged_by_itself() -> None:
    """Learned positions may say something else than rotary ones, and say it."""
    rising = {4: 1.0, 16: 1.01, 64: 1.02, 128: 1.03}
    rows = [
        *rows_of(BOWL, positions="rotary"),
        *rows_of({**BOWL, 32: 1.01}, width=256, positions="rotary"),
        *[row for row in rows_of(rising, positions="learned") if row["seed"] == 0],
    ]
    curves = shared_width_curves(rows)
    assert [(one.width, one.variant, one.main) for one in curves] == [
        (128, "positions rotary", True),
        (128, "positions learned", False),
        (256, "", True),
    ]
    found = {
        one.statement.partition(": ")[0]: one.holds for one in text_rank_claims(rows, {}) if "too" in one.statement
    }
    assert found == {
        "c0, d = 128 (positions rotary)": True,
        "c0, d = 128 (positions learned)": False,
        "c0, d = 256": True,
    }
    assert "d = 128 r = 16, d = 256 r = 16" in claim(rows, "share of the width").evidence
