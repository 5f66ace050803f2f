"""Language models as evidence: met exactly, interpolated between, flagged outside; other data give another plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from tests.drawing.read import curves, panels_of

import rankfall
from rankfall.planning import text_evidence
from rankfall.planning.recommendation import EQUAL_TEXT
from rankfall.planning.text_evidence import TEXT, curves_of
from rankfall.store.identity import settings
from rankfall.training.text import results
from rankfall.training.text.cell import TextCell

RANKS = (4, 16, 64, 128)
LOW_IS_BEST = {4: 1.0, 16: 1.0, 64: 1.03, 128: 1.05}
ONE_ROW_LIKE_THEM = (
    "they say nothing of 16 heads of rank 16, since they have keys and values for every head, as wide as its rank; "
    "of these rows 2 heads of rank 128 lose least, 0.00%"
)
HIGH_IS_BEST = {4: 1.2, 16: 1.04, 64: 1.0, 128: 1.0}


def rows(losses: Mapping[int, float], widths: tuple[int, ...] = (128, 512), **changes: Any) -> list[dict[str, Any]]:
    """Models of three seeds on one text, their losses at the given multiples."""
    made = []
    for width in widths:
        for rank, loss in losses.items():
            for seed in range(3):
                heads = width // rank
                cell = TextCell(
                    corpus="abc", width=width, heads=heads, key_heads=heads, rank=rank, value_rank=rank, seed=seed,
                    budget="parameters=2000000 by feed_forward",
                )  # fmt: skip
                measured = {"status": "done", "nats_per_byte": loss + 1e-4 * seed, "nats_per_byte_error": 1e-3}
                sizes = {"parameters": 2e6, "tokens_trained": 1e8, "domain": "prose"}
                made.append({**settings(cell), **measured, **sizes, **changes})
    return made


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(found: list[dict[str, Any]]) -> None:
        monkeypatch.setattr(text_evidence, "_committed", lambda: curves_of(found))

    return give


def test_trained_points_stand_for_themselves_and_between_them_it_is_interpolated(known: Any) -> None:
    known(rows(HIGH_IS_BEST))
    at = {rank: TEXT.estimate(128 // rank, rank, 64, 128) for rank in RANKS}
    for rank, found in at.items():
        assert found is not None
        assert found.value == pytest.approx(HIGH_IS_BEST[rank] / 1.0001 - 1, abs=2e-4)
        assert found.low <= found.value <= found.high
        assert found.outside == ()
    between = TEXT.estimate(4, 32, 64, 128)
    assert between is not None
    assert between.value == pytest.approx(0.02, abs=2e-4), "halfway in log r"
    assert between.high > 0.04


def test_between_widths_and_over_texts(known: Any) -> None:
    narrow, wide = rows(HIGH_IS_BEST, (128,)), rows({**HIGH_IS_BEST, 16: 1.0}, (512,))
    known([*narrow, *wide])
    middle = TEXT.estimate(16, 16, 64, 256)
    assert middle is not None
    assert middle.value == pytest.approx(0.02, abs=2e-4), "halfway in log d"
    assert middle.outside == ()
    other = [{**row, "corpus": "def", "domain": "code"} for row in rows(LOW_IS_BEST, (128, 512))]
    known([*narrow, *wide, *other])
    both = TEXT.estimate(16, 16, 64, 256)
    assert both is not None
    assert both.value == pytest.approx(0.01, abs=2e-4), "the mean of two texts"
    assert both.high > 0.04 > both.low


def test_texts_without_a_common_width(known: Any) -> None:
    known(
        [
            *rows(HIGH_IS_BEST, (128,)),
            *({**row, "corpus": "def", "domain": "code"} for row in rows(LOW_IS_BEST, (512,))),
        ]
    )
    assert TEXT.widths == (128, 512)
    between = TEXT.estimate(4, 64, 64, 256)
    assert between is not None
    assert between.value == pytest.approx(0.015, abs=2e-4), "both are as near"
    assert between.outside == (
        "language models were trained at d = 128 and 512; at 256 those of 128 and 512 stand for it",
    )
    for width, text, near in ((192, 0.0, 128), (320, 0.03, 512)):
        nearer = TEXT.estimate(width // 64, 64, 64, width)
        assert nearer is not None
        assert nearer.value == pytest.approx(text, abs=2e-4), "the text with the nearer width"
        assert nearer.outside == (
            f"language models were trained at d = 128 and 512; at {width} those of {near} stand for it",
        )


def test_texts_that_were_not_trained_around_a_width_do_not_speak_of_it(known: Any) -> None:
    code = [{**row, "corpus": "def", "domain": "code"} for row in rows(LOW_IS_BEST, (256,))]
    known([*rows(HIGH_IS_BEST), *code])
    at = {width: TEXT.estimate(width // 16, 16, 64, width) for width in (64, 128, 256, 512, 528, 4096)}
    values = {width: found.value for width, found in at.items() if found is not None}
    assert values == pytest.approx({64: 0.04, 128: 0.04, 256: 0.02, 512: 0.04, 528: 0.04, 4096: 0.04}, abs=2e-4)
    assert [len(found.outside) for found in at.values() if found is not None] == [1, 0, 0, 0, 1, 1]


def test_beyond_the_trained_widths_the_loss_goes_on_from_the_last() -> None:
    """Of the committed models one text reaches furthest on each side."""
    for last, beyond in ((max(TEXT.widths), 8), (min(TEXT.widths), -8)):
        for rank in (8, 16, 64):
            at, past = (TEXT.estimate(round(width / rank), rank, 64, width) for width in (last, last + beyond))
            assert at is not None
            assert past is not None
            assert (past.value, past.low, past.high) == (at.value, at.low, at.high)
            assert f"at {last + beyond} those of {last} stand for it" in past.outside[0]


def test_nothing_stands_for_ranks_that_were_not_trained(known: Any) -> None:
    """Ranks are those of the models around the width, not of narrower ones."""
    known([*rows(HIGH_IS_BEST, (128, 256)), *rows({8: 1.1, 16: 1.0, 32: 1.0, 64: 1.1}, (512,))])
    trained = {
        (width, rank): found.known
        for width in (128, 256, 384, 512, 1024)
        for rank in (4, 16, 64, 128)
        if (found := TEXT.estimate(width // rank, rank, 64, width)) is not None
    }
    narrow = [(width, rank) for width in (384, 512, 1024) for rank in (4, 128)]
    assert [where for where, number in trained.items() if not number] == narrow
    none = TEXT.estimate(4, 128, 64, 512)
    assert none is not None
    assert none.outside == ("their ranks are 8 to 64, none near 128 was trained",)


def test_rows_of_ranks_that_were_not_trained_are_empty_and_say_why(known: Any) -> None:
    known(rows(HIGH_IS_BEST))
    found = rankfall.plan(512, heads=8, time=False)
    empty = {row["rank"]: row["text_excess_outside"] for row in found.candidates if row["text_excess"] is None}
    assert empty == {
        256: "their ranks are 4 to 128, none near 256 was trained",
        512: "their ranks are 4 to 128, none near 512 was trained",
    }
    assert all(row["text_excess_low"] is row["text_excess_high"] is None for row in found.candidates[-2:])
    whole = rankfall.plan(512, heads=8, time=False, directions=512)
    assert whole.recommendation["rank"] == 512
    assert whole.recommendation["language"].startswith(
        "they say nothing of 1 head of rank 512, since their ranks are 4 to 128, none near 512 was trained; of these"
    )
    assert "evidence from language models, of which none is known for such heads" in whole.recommendation["changes"]


@pytest.mark.parametrize(
    "other",
    [{"group": 4}, {"kv_heads": 2}, {"value_rank": 8}, {"kv_latent": 128}, {"q_latent": 128}, {"shared": 2}],
    ids=str,
)
def test_heads_unlike_those_that_were_trained_have_no_loss(known: Any, other: dict[str, int]) -> None:
    known(rows(HIGH_IS_BEST))
    found = rankfall.plan(256, heads=16, time=False, **other)  # type: ignore[arg-type]
    unlike = [row for row in found.candidates if (row["kv_heads"], row["value_rank"]) != (row["heads"], row["rank"])]
    for row in unlike or found.candidates:
        assert row["text_excess"] is row["text_excess_low"] is row["text_excess_high"] is None
        assert row["text_excess_outside"] == "they have keys and values for every head, as wide as its rank"
    assert found.recommendation["language"] == ("" if other != {"kv_heads": 2} else ONE_ROW_LIKE_THEM)
    assert "of which none is known for such heads" in found.recommendation["changes"][-1]


def test_models_of_two_budgets_are_never_in_one_curve() -> None:
    others = rows(dict.fromkeys(RANKS, 9.0), budget="parameters=9000000 by feed_forward")
    (curve, _) = curves_of([*rows(HIGH_IS_BEST), *others[1:-1]])
    assert curve.points[0].excess == pytest.approx(0.2, abs=2e-3)
    assert {one.seeds for one in curve.points} == {3}


def test_what_lies_outside_is_said(known: Any) -> None:
    known(rows(HIGH_IS_BEST))
    far = TEXT.estimate(8, 512, 64, 4096)
    assert far is not None
    assert [line.split()[0] for line in far.outside] == ["language", "their"]
    half = TEXT.estimate(1, 64, 64, 128)
    assert half is not None
    assert half.outside == ("they have H r = d, not H r = 0.5 d",)
    assert not half.known
    near = TEXT.estimate(33, 16, 64, 512)
    assert near is not None
    assert near.known
    assert near.outside == ("they have H r = d, not H r = 1.03 d",)
    assert TEXT.estimate(2, 64, 64) is None, "nothing is known without a width"


def test_only_models_that_compare_count() -> None:
    left_out = [
        rows(HIGH_IS_BEST, status="diverged"),
        rows(HIGH_IS_BEST, budget="step_seconds=0.01 by feed_forward"),
        rows(HIGH_IS_BEST, value_rank=8),
        rows(HIGH_IS_BEST, key_heads=1),
        rows({4: 1.0, 16: 1.1, 64: 1.0}),
    ]
    assert [curves_of(one) for one in left_out] == [()] * 5
    for counted in (rows(HIGH_IS_BEST), rows(HIGH_IS_BEST, budget="none"), rows(HIGH_IS_BEST, budget="flops=1e+16")):
        (curve, _) = curves_of(counted)
        assert (curve.parameters, curve.tokens, curve.points[0].seeds) == (2e6, 1e8, 3)
    wider = rows(HIGH_IS_BEST, (128,), budget="none", feed_forward=9)[:-1]
    (curve,) = curves_of([*rows(LOW_IS_BEST, (128,), budget="none"), *wider])
    assert curve.points[0].excess == 0.0, "without a budget models of two sizes are not mixed"
    (curve,) = curves_of([*rows(HIGH_IS_BEST, (128,)), *rows(dict.fromkeys(RANKS, 9.0), (128,), learning_rate=1.0)])
    assert {one.seeds for one in curve.points} == {3}, "the best rate speaks"


def test_the_margin_is_that_of_a_difference_and_a_lone_seed_has_that_of_the_others() -> None:
    models = rows(HIGH_IS_BEST, (128,))
    spread = [{**row, "nats_per_byte": row["nats_per_byte"] + 0.01 * row["seed"]} for row in models]
    (curve,) = curves_of(spread)
    own = {one.rank: one.margin for one in curve.points}
    assert own[4] == pytest.approx(own[64] * 2**0.5), "as unsure as the best, whose own margin is alone"
    alone = [row for row in spread if row["rank"] != 4 or row["seed"] == 0]
    (curve,) = curves_of(alone)
    (lone,) = (one for one in curve.points if one.rank == 4)
    deviation, of_six_freedoms, least = 0.0101, 2.4469, 1.0101
    assert lone.margin * least == pytest.approx(deviation * of_six_freedoms * (1 + 1 / 3) ** 0.5, rel=1e-4)


def test_what_it_is_about_names_sizes_and_budget(known: Any) -> None:
    known(rows(HIGH_IS_BEST))
    for words in (
        "texts prose",
        "d = 128 and 512",
        "2 million parameters",
        "100 million tokens",
        "3 seeds",
        "4 layers",
    ):
        assert words in TEXT.about
    known([])
    assert TEXT.about == "No language models are installed here."
    assert TEXT.estimate(8, 16, 64, 128) is None


def test_models_of_settings_that_are_not_used_are_said_to_exist(known: Any) -> None:
    known(rows(HIGH_IS_BEST, (128,)))
    assert "is used" not in TEXT.about
    assert TEXT.about.endswith("Larger models, other texts and more than 100 million tokens were not tried.")
    longer = rows(LOW_IS_BEST, (128,), steps=7, tokens_trained=3e8)[:-1]
    known([*rows(HIGH_IS_BEST), *longer])
    assert TEXT.about.endswith(
        "Of each text and width only the setting with most models is used: 11 other models on prose at d = 128, of "
        "300 million tokens, exist and are not. Larger models, other texts and more than 300 million tokens were not "
        "tried."
    )
    found = TEXT.estimate(8, 16, 64, 128)
    assert found is not None
    assert found.value == pytest.approx(0.04, abs=2e-4), "as if they did not exist"


def test_the_committed_texts_of_each_width_are_those_that_the_guide_names() -> None:
    by_text: dict[str, list[int]] = {}
    for curve in TEXT.curves:
        by_text.setdefault(curve.domain, []).append(curve.width)
    assert by_text == {"prose": [128, 256, 512], "code": [256, 512]}
    (longer,) = (curve for curve in TEXT.curves if curve.unused)
    assert (longer.domain, longer.width) == ("prose", 256)
    assert max(longer.unused) == 98_304_000 > longer.tokens
    guide = " ".join((Path(__file__).parents[2] / "docs/guide/plan.md").read_text(encoding="utf-8").split())
    assert "prose from 128 to 512, and from 256 to 512 code as well" in guide


def test_other_models_give_another_plan(known: Any) -> None:
    known([])
    bare = rankfall.plan(256, heads=16, time=False, directions=8)
    assert bare.recommendation["language"] == ""
    assert bare.candidates[0]["text_excess"] is None
    assert any("none is known" in line for line in bare.recommendation["changes"])
    known(rows(LOW_IS_BEST))
    low = rankfall.plan(256, heads=16, time=False, directions=8)
    known(rows(HIGH_IS_BEST))
    high = rankfall.plan(256, heads=16, time=False, directions=8)
    assert bare.recommendation["rank"] == low.recommendation["rank"] == 8
    assert high.recommendation["rank"] > 16
    assert "over 1% more than the best rank" in high.recommendation["criterion"]
    assert "which would be taken without them, lose" in high.recommendation["language"]
    assert "100 million tokens" in high.evidence["text_excess"]
    assert any(line.startswith("language models: with") for line in high.reasons())
    chosen = next(row for row in high.candidates if row["recommended"])
    assert chosen["text_excess_low"] <= EQUAL_TEXT


def test_the_picture_has_them_where_they_are_of_the_size(known: Any) -> None:
    known(rows(HIGH_IS_BEST))
    near = rankfall.plan(256, heads=16, time=False)
    text, _, _ = panels_of(near.plot())
    ((ranks, drawn), *_) = curves(text).values()
    known_at = {row["rank"]: 100 * row["text_excess"] for row in near.candidates if row["text_excess"] is not None}
    assert sorted(ranks) == sorted(known_at) == [8, 16, 32, 64, 128], "256 was not trained"
    assert drawn == pytest.approx([known_at[rank] for rank in ranks], rel=1e-6)
    assert len(panels_of(rankfall.plan(256, heads=16, group=4, time=False).plot())) == 2, "no row has a number"


def test_beyond_the_trained_sizes_language_models_do_not_decide(known: Any) -> None:
    known([])
    bare = rankfall.plan(2048, heads=32, time=False)
    known(rows(LOW_IS_BEST))
    far = rankfall.plan(2048, heads=32, time=False)
    assert far.recommendation["rank"] == bare.recommendation["rank"] == 64
    assert (
        "this did not decide, since language models were trained at d = 128 and 512" in far.recommendation["language"]
    )
    assert "evidence from language models of this size" in far.recommendation["changes"]
    grouped = rankfall.plan(256, heads=16, group=4, time=False)
    assert grouped.recommendation["language"] == "", "shared keys were not trained"


def test_committed_rows_have_the_name_of_their_text(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    found = {str(n): {**row, "id": str(n)} for n, row in enumerate(rows(HIGH_IS_BEST))}
    for row in found.values():
        del row["domain"]
    monkeypatch.setattr(results, "committed_summaries", lambda: {**found, "points": {"task": "farthest"}})
    package = tmp_path / "src" / "rankfall"
    (tmp_path / "results" / "text-rank").mkdir(parents=True)
    package.mkdir(parents=True)
    monkeypatch.setattr(results.rankfall, "__file__", str(package / "__init__.py"))
    assert {row["domain"] for row in results.text_results()} == {"abc"}
    page = tmp_path / "results" / "text-rank" / "corpora.json"
    page.write_text(json.dumps({"abc": {"name": "prose", "bytes": 7}}))
    assert {row["domain"] for row in results.text_results()} == {"prose"}
    assert len(results.text_results()) == len(found)
    page.write_text("[1]")
    with pytest.raises(rankfall.errors.RequestError, match="corpora by hash"):
        results.text_results()
