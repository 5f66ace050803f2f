"""The figure of language models: what it reads from committed rows, its claims by data that fulfil or refute them."""

from __future__ import annotations

import math
import os
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from tests.drawing.read import curves, panels_of
from tests.loading import loaded
from tests.planning.test_text_evidence import rows as models

from rankfall.catalogue import FIGURES
from rankfall.drawing.text_rank import lines_of
from rankfall.figures import text_rank
from rankfall.figures.text_rank import STORE_VARIABLE, need_claims, rank_or_heads_claims, shape_records, use_claims
from rankfall.store.store import Store
from rankfall.training.grid import read_grid
from rankfall.training.text.cell import TextCell

HIGH = {4: 1.3, 16: 1.1, 64: 1.0, 128: 1.05}
NAMES = {"abc": "prose"}


def audited(
    losses: dict[int, float] = HIGH, widths: tuple[int, ...] = (128,), **changes: Any
) -> list[dict[str, Any]]:
    sizes = {"unigram_nats_per_byte": 2.5, "training_flops": 1e15, "seconds": 10.0, "steps_done": 1000}
    return [
        {
            **row,
            **sizes,
            "token_rank_layer_0": 50.0,
            "token_rank_layer_10": 7.0 + row["rank"],
            "token_rank_last": 7.0 + row["rank"] + row["seed"],
            "head_rank_used": 0.8 * row["rank"],
            "head_rank_needed": 0.5 * row["rank"],
            "synthetic_error": 1 - row["rank"] / row["width"],
            **changes,
        }
        for row in models(losses, widths)
    ]


def test_records_hold_the_mean_over_seeds_of_losses_and_audits() -> None:
    found = shape_records(audited())
    assert [record["rank"] for record in found] == [4, 16, 64, 128]
    record = found[1]
    assert (record["domain"], record["seeds"], record["times_width"], record["rank_over_width"]) == (
        "prose",
        3,
        1,
        0.125,
    )
    assert record["nats_per_byte"] == pytest.approx(1.1001)
    assert record["nats_per_byte_low"] < 1.1001 < record["nats_per_byte_high"]
    assert record["token_rank_last"] == pytest.approx(7 + 16 + 1)
    ranks = [name for name in record if name.startswith("token_rank_layer")]
    assert ranks == ["token_rank_layer_0", "token_rank_layer_10"]


def test_diverged_models_are_left_out_of_the_means() -> None:
    rows = audited()
    rows[0] |= {"status": "diverged", "nats_per_byte": 99.0, "token_rank_last": 1e6}
    record = shape_records(rows)[0]
    assert (record["seeds"], record["diverged"]) == (2, 1)
    assert record["token_rank_last"] < 100


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"head_rank_used": 3.0}, None),
        ({"head_rank_needed": 120.0}, "at most 75% of it"),
        ({"head_rank_needed": 2.0}, "at most 75% of it"),
    ],
)
def test_each_claim_can_fail(changes: dict[str, Any], words: str | None) -> None:
    good = audited()
    assert [claim.holds for claim in [*use_claims(good, NAMES), *need_claims(good, NAMES)]] == [True] * 2
    bad = audited(**changes)
    if words is None:
        falling = [{**row, "head_rank_used": 200.0 - row["rank"]} for row in bad]
        (claim,) = use_claims(falling, NAMES)
        assert not claim.holds
        return
    failed = [claim for claim in need_claims(bad, NAMES) if not claim.holds]
    assert [words in claim.statement for claim in failed] == [True]


def test_without_audits_there_is_nothing_to_claim_of_needs() -> None:
    assert need_claims(audited(head_rank_needed=None), NAMES) == []


@pytest.mark.parametrize(("by_rank", "by_heads", "holds"), [(0.05, 0.01, True), (0.01, 0.05, False)])
def test_rank_matters_more_than_heads_or_does_not(by_rank: float, by_heads: float, holds: bool) -> None:
    shapes = [(rank, heads) for rank in (4, 8, 16) for heads in (8, 16, 32)]
    (first, *_) = shape_records(audited())
    records = [
        {
            **first, "rank": rank, "heads": heads, "key_heads": heads, "value_rank": first["width"] // heads,
            "nats_per_byte": 2 - by_rank * math.log2(rank) - by_heads * math.log2(heads),
        }
        for rank, heads in shapes
    ]  # fmt: skip
    others = [
        {**records[0], **change, "nats_per_byte": 9.0}
        for change in ({"value_rank": 1}, {"key_heads": 1}, {"budget": "flops=1e15 by feed_forward"})
    ]
    (claim,) = rank_or_heads_claims([*records, *others])
    assert claim.holds == holds
    assert claim.statement.startswith("prose, d = 128: twice the rank changes the loss more than twice the heads")
    assert "in the mean of 6" in claim.evidence
    assert rank_or_heads_claims(records[:3]) == [], "heads alone differ"


def test_at_paper_scale_it_reads_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, os.devnull)
    monkeypatch.setattr(text_rank, "read_grid", lambda name: [])
    code = [{**row, "corpus": "def", "domain": "code"} for row in audited()]
    monkeypatch.setattr(text_rank, "text_results", lambda: numbered([*audited(widths=(128, 512)), *code]))
    monkeypatch.setattr(text_rank, "corpus_names", lambda: {**NAMES, "def": "code"})
    outcome = FIGURES["rankfall/text-rank"].run("paper")
    assert len(outcome.points) == len(outcome.tables["text_rank"]) == 12
    statements = [claim.statement for claim in outcome.claims]
    assert any(line.startswith("code, d = 128: the best rank lies between") for line in statements)
    assert any(line.startswith("prose: the best rank's share of the width falls") for line in statements)
    assert sum("uses more rank" in line or "use more rank" in line for line in statements) == 3
    assert {line.partition(", width")[0] for line in outcome.notes[1:]} == {"prose", "code"}
    assert outcome.draw is not None
    panels = panels_of(outcome.draw())
    titles = [panel["title"].partition(", equal parameters")[0] for panel in panels[3:]]
    assert titles == ["code, d = 128", "prose, d = 128", "prose, d = 512"]
    assert "2 million parameters" in panels[3]["title"]
    assert [*dict.fromkeys(curves(panels[0]))] == titles
    ranks, costs = curves(panels[0])["prose, d = 128"]
    assert (ranks, costs) == ([4, 16, 64, 128], pytest.approx([30, 10, 0, 5], abs=0.02))
    assert list(curves(panels[1])) == titles
    assert curves(panels[2])["all that a head has"][1] == [4, 16, 64, 128]


def other_settings() -> list[dict[str, Any]]:
    """Models of equal time of a step, whose best rank is another, and of twice the steps, beside those of HIGH."""
    reversed_losses = dict(zip(HIGH, reversed(HIGH.values()), strict=True))
    timed = [
        {**row, "feed_forward": 16 * row["rank"], "parameters": 1e6 + row["rank"] * 1e4}
        for row in audited(reversed_losses, budget="step_seconds=0.008 by feed_forward")
    ]
    longer = audited({16: 0.9, 64: 0.8, 128: 0.7}, steps=2000, steps_done=2000)
    return [*timed, *longer]


def test_equal_time_and_longer_runs_are_settings_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome_of(rows: list[dict[str, Any]]) -> Any:
        monkeypatch.setattr(text_rank, "text_results", lambda: numbered(rows))
        return FIGURES["rankfall/text-rank"].run("paper")

    monkeypatch.setenv(STORE_VARIABLE, os.devnull)
    monkeypatch.setattr(text_rank, "read_grid", lambda name: [])
    monkeypatch.setattr(text_rank, "corpus_names", lambda: NAMES)
    alone, beside = outcome_of(audited()), outcome_of([*audited(), *other_settings()])
    assert beside.claims == alone.claims, "claims are of equal parameters, and three ranks make no curve"
    losses = {
        (one["budget"].partition("=")[0], one["steps"], one["rank"]): round(one["nats_per_byte"], 2)
        for one in beside.tables["text_rank"].to_dict("records")
    }
    assert len(beside.tables["text_rank"]) == len(losses) == 11
    assert [losses["parameters", 1000, rank] for rank in HIGH] == list(HIGH.values())
    assert [losses["step_seconds", 1000, rank] for rank in HIGH] == [1.05, 1.0, 1.1, 1.3]
    assert [losses["parameters", 2000, rank] for rank in (16, 64, 128)] == [0.9, 0.8, 0.7]
    panels = panels_of(beside.draw())
    assert [*curves(panels[0])] == [
        "prose, d = 128, steps 1000",
        "prose, d = 128, steps 2000",
        "prose, d = 128, equal time",
    ]
    assert "8 ms a step each" in panels[-1]["title"]
    said = [note for note in beside.notes if note.startswith("prose, width 128")]
    assert [("rank 16" in note, "step_seconds=0.008" in note) for note in said].count((True, True)) == 1
    assert len(said) == 3


def test_tables_of_the_guide_keep_them_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = loaded("scripts/trained_tables.py")
    monkeypatch.setattr(tables, "_text_rows", lambda: numbered([*audited(), *other_settings()]))
    found = [line.split(" | ") for line in tables.text_losses().splitlines() if line.startswith("| prose")]
    assert [(row[2], row[3]) for row in found] == [
        ("2 M", "16 M"),
        ("2 M", "33 M"),
        ("1.04 to 2.28 M, 8 ms a step", "16 M"),
    ]
    best = [next(place for place, cell in enumerate(row) if cell.startswith("**")) for row in found]
    assert best == [7, 8, 6], "r = 64 at equal parameters, 128 after more steps, 16 at equal time"


def test_without_results_it_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_VARIABLE, os.devnull)
    monkeypatch.setattr(text_rank, "text_results", list)
    monkeypatch.setattr(text_rank, "corpus_names", dict)
    outcome = FIGURES["rankfall/text-rank"].run("paper")
    assert (outcome.holds, outcome.draw, list(outcome.points)) == (None, None, [])
    count = len(read_grid("text-rank"))
    assert outcome.notes[0].startswith(f"{count} of {count} models of the grid text-rank are not trained yet")
    assert "rankfall sweep text-rank --store runs" in outcome.notes[0]


def test_models_in_the_user_s_store_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = audited()
    cells = [TextCell(**{one.name: row[one.name] for one in fields(TextCell)}) for row in rows]
    store = Store(tmp_path / "runs")
    for cell, row in zip(cells[:-1], rows, strict=False):
        store.write(cell, summary={**row, "domain": None}, environment={"date": "2026-01-02"})
    store.write(TextCell(seed=9), summary=rows[0], environment={"date": "2026-01-02"})
    monkeypatch.setenv(STORE_VARIABLE, str(store.path))
    monkeypatch.setattr(text_rank, "text_results", list)
    monkeypatch.setattr(text_rank, "corpus_names", lambda: NAMES)
    monkeypatch.setattr(text_rank, "read_grid", lambda name: cells)
    outcome = FIGURES["rankfall/text-rank"].run("paper")
    assert "1 of 12 models" in outcome.notes[0]
    table = outcome.tables["text_rank"]
    assert (list(table["domain"].unique()), list(table["seeds"])) == (["prose"], [3, 3, 3, 2])
    assert table["head_rank_used"].iloc[1] == pytest.approx(0.8 * 16)


def numbered(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{**row, "id": str(number)} for number, row in enumerate(rows)]


def test_lines_are_equal_totals_and_fixed_heads() -> None:
    def record(heads: int, rank: int) -> dict[str, Any]:
        return {"heads": heads, "rank": rank, "width": 64}

    shapes = [(16, 4), (8, 8), (4, 16), (8, 4), (16, 8), (8, 16), (8, 32), (3, 5)]
    lines = lines_of([record(*shape) for shape in shapes])
    assert {name: [(one["heads"], one["rank"]) for one in own] for name, own in lines.items()} == {
        "H r = d": [(16, 4), (8, 8), (4, 16)],
        "H r = 2 d": [(16, 8), (8, 16)],
        "H = 8, r free": [(8, 4), (8, 8), (8, 16), (8, 32)],
        "others": [(3, 5)],
    }
