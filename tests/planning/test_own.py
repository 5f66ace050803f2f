"""A person's own runs beside a plan: from a store or results, before those that ship, refused where none fits."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from tests.calls import answer, call

import rankfall
from rankfall.errors import RequestError
from rankfall.store.identity import settings
from rankfall.store.store import Store
from rankfall.training.cell import Cell
from rankfall.training.grid import read_grid
from rankfall.training.kinds import Surroundings
from rankfall.training.text.cell import TextCell

LOW_COSTS = {4: 1.2, 8: 1.04, 16: 1.0}
HIGH_COSTS = {4: 1.0, 8: 1.0, 16: 1.1}
ENVIRONMENT = {"hardware": "a machine", "date": "2026-01-01", "commit": "0"}


def store_of(folder: Path, losses: dict[int, float], seeds: int = 2, width: int = 64, **changes: Any) -> Path:
    """Finished language models whose heads share the width, at the given losses; seeds lie close together."""
    store = Store(folder)
    for rank, loss in losses.items():
        for seed in range(seeds):
            heads = width // rank
            shape = TextCell(
                corpus="0123456789abcdef", width=width, heads=heads, key_heads=heads, rank=rank, value_rank=rank
            )
            cell = replace(shape, seed=seed, **{key: own for key, own in changes.items() if hasattr(shape, key)})
            measured = {
                "nats_per_byte": loss + 1e-4 * seed,
                "nats_per_byte_error": 1e-3,
                "unigram_nats_per_byte": 3.0,
            }
            sizes = {"status": "done", "parameters": 50_000, "tokens_trained": 300_000}
            summary = {**asdict(cell), **measured, **sizes, **changes}
            store.write(asdict(cell), summary=summary, environment=ENVIRONMENT)
    return folder


def planned(**own: Any) -> rankfall.api.plan.PlanResult:
    return rankfall.plan(64, layers=2, context=64, heads=16, time=False, **own)


def test_own_models_decide_at_their_width_in_place_of_those_that_ship(tmp_path: Path) -> None:
    bare = planned()
    assert (bare.recommendation["rank"], bare.own_models) == (4, "")
    low, high = (store_of(tmp_path / str(n), of) for n, of in enumerate((LOW_COSTS, HIGH_COSTS)))
    found = planned(store=low)
    losses = {row["rank"]: row["text_excess"] for row in found.candidates if row["text_excess"] is not None}
    assert losses == pytest.approx({4: 0.2, 8: 0.04, 16: 0.0}, abs=1e-3)
    assert found.recommendation["rank"] == 16
    assert found.recommendation["reason"].startswith("language models lose 20.00% with 16 heads of rank 4 (")
    assert f"those in {low}, in place of those that ship" in found.own_models
    assert found.own_models in found.reasons()
    assert "01234567, d = 64" in found.evidence["text_excess"]
    other = planned(store=high)
    assert other.recommendation["rank"] == 4, "another text, another answer"


def test_results_say_what_their_store_says_and_both_may_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = store_of(tmp_path / "runs", LOW_COSTS)
    rankfall.runs(store, export_results=tmp_path / "results")
    kept, exported = planned(store=store), planned(results=tmp_path / "results")
    assert exported.candidates == kept.candidates
    assert exported.recommendation == kept.recommendation
    both = planned(store=store, results=tmp_path / "results")
    assert both.candidates == kept.candidates, "no model counts twice"
    asked = ("plan", "--width", 64, "--layers", 2, "--context", 64, "--heads", 16, "--no-time")
    record = answer(capsys, *map(str, asked), "--results", str(tmp_path / "results"))
    assert record["recommendation"] == json.loads(json.dumps(exported.recommendation))
    assert record["own_models"] == exported.own_models
    _, printed, _ = call(capsys, *asked, "--store", store)
    assert "in place of those that ship" in " ".join(printed.split())
    page = next((tmp_path / "results").glob("*.csv"))
    page.write_text(page.read_text().replace("0123456789abcdef", "fedcba9876543210", 1))
    with pytest.raises(RequestError, match="to hash to its id"):
        planned(results=tmp_path / "results")


def test_the_shipped_grid_trains_models_that_a_plan_compares(tmp_path: Path) -> None:
    verses = (f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(300))
    (tmp_path / "book.txt").write_text("\n\n".join(verses))
    around = Surroundings(text=str(tmp_path / "book.txt"), store=lambda: Store(tmp_path / "runs").path)
    cells = read_grid("text-heads", around)
    assert len(cells) == 12
    for of in map(settings, cells):
        measured = {"nats_per_byte": 1.0 + 1 / of["rank"] + 1e-4 * of["seed"], "unigram_nats_per_byte": 3.0}
        sizes = {"status": "done", "parameters": 120_000, "tokens_trained": 500_000}
        Store(tmp_path / "runs").write(of, summary={**of, **measured, **sizes}, environment=ENVIRONMENT)
    found = planned(store=tmp_path / "runs")
    assert [row["rank"] for row in found.candidates if row["text_excess"] is not None] == [4, 8, 16, 32]
    assert found.recommendation["rank"] == 32


def test_at_another_width_those_that_ship_speak_and_it_is_said(tmp_path: Path) -> None:
    store = store_of(tmp_path / "runs", LOW_COSTS)
    bare, found = (rankfall.plan(256, heads=16, time=False, **of) for of in ({}, {"store": store}))  # type: ignore[arg-type]
    assert found.recommendation == bare.recommendation
    assert "have d = 64 and do not speak of 256: those that ship with rankfall do" in found.own_models
    far = rankfall.plan(1024, heads=16, time=False, store=store)
    assert "at 1024 those of 64 stand for it" in far.candidates[-1]["text_excess_outside"]


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"seeds": 1}, "each rank has one seed, so that nothing says how much of the differences is chance"),
        ({"unigram_nats_per_byte": 1.1}, "the best of them has learned little beyond frequencies of tokens"),
    ],
)
def test_models_that_are_too_small_to_tell_do_not_decide(tmp_path: Path, changes: dict[str, Any], why: str) -> None:
    found = planned(store=store_of(tmp_path / "runs", LOW_COSTS, **changes))
    assert found.recommendation["rank"] == planned().recommendation["rank"]
    assert f"this did not decide, since {why}" in found.recommendation["language"]
    assert found.candidates[0]["text_excess"] == pytest.approx(0.2, abs=1e-3), "shown all the same"


def test_a_text_on_which_little_was_learned_leaves_the_decision_to_the_others(tmp_path: Path) -> None:
    store = store_of(tmp_path / "runs", LOW_COSTS)
    alone = planned(store=store)
    store_of(store, HIGH_COSTS, corpus="fedcba9876543210", unigram_nats_per_byte=1.01)
    both = planned(store=store)
    assert both.recommendation == alone.recommendation
    assert both.candidates == alone.candidates
    assert "Left out are those on fedcba98 at d = 64: the best of them has learned" in both.evidence["text_excess"]


@pytest.mark.parametrize(
    ("made", "got"),
    [
        ({"losses": {8: 1.0}}, "got 2 language models, of which such heads have rank 8 at d = 64; sweep a grid with"),
        (
            {"losses": LOW_COSTS, "value_rank": 2},
            "got 6 language models, of which such heads have none; sweep a grid",
        ),
        ({"losses": LOW_COSTS, "budget": "step_seconds=0.1 by feed_forward"}, "of which such heads have none"),
    ],
)
def test_models_that_compare_nothing_are_refused_in_one_line(tmp_path: Path, made: dict[str, Any], got: str) -> None:
    store = store_of(tmp_path / "runs", **made)
    with pytest.raises(RequestError) as refused:
        planned(store=store)
    assert got in str(refused.value)
    assert "\n" not in str(refused.value)
    Store(store).write(
        asdict(Cell(steps=100)), summary={**asdict(Cell(steps=100)), "status": "done", "mse_fresh": 0.5},
        environment=ENVIRONMENT,
    )  # fmt: skip
    assert "which compare no ranks at one cost" in planned(store=store).own_models, "other runs are there to be shown"


def test_a_store_without_anything_to_say_is_refused(tmp_path: Path) -> None:
    Store(tmp_path / "runs")
    with pytest.raises(RequestError, match="finished runs of the task farthest, or language models"):
        planned(store=tmp_path / "runs")
    with pytest.raises(RequestError, match="no such folder"):
        planned(store=tmp_path / "nowhere")
    with pytest.raises(RequestError, match="no such file or folder"):
        planned(results=tmp_path / "nowhere")
