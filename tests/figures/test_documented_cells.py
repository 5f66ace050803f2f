"""What the guide and the README say about trained models is what the committed cells say."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.loading import loaded

import rankfall
from rankfall.training.text.results import shared_width_curves

ROOT = Path(rankfall.__file__).parents[2]


@pytest.fixture(scope="module")
def tables() -> ModuleType:
    return loaded("scripts/trained_tables.py")


def test_tables_of_trained_models_are_current(tables: ModuleType) -> None:
    seen = set()
    for page in tables.PAGES:
        text = page.read_text(encoding="utf-8")
        seen |= {found[1] for found in tables.BLOCK.finditer(text)}
        assert tables.filled(text) == text, f"{page}: run python scripts/trained_tables.py"
    assert seen == {*tables.BLOCKS}


def test_tables_hold_every_trained_point_and_nothing_else(tables: ModuleType) -> None:
    trained = [point for point in tables.outcome("amsel/fig1").points if point["ours"] is not None]
    rows = [line for block in (tables.one_layer(), tables.at_depth()) for line in block.splitlines()[2:]]
    assert len(rows) == len(trained) >= 38
    assert tables.counts().startswith(f"{len(trained)} of 63 points")
    for point in trained:
        key = f"{point['multiplier']} | {point['rank']} | {point['published']:g} | {point['ours']:.4g} |"
        (row,) = [row for row in rows if key in row]
        assert ("| yes |" in row) is point["agrees"]
        assert f"| {point['same_weights_fresh']:.3f} |" in row


def test_the_finding_that_the_prose_states(tables: ModuleType) -> None:
    """At r = 8 and m = 1: 0.84 to 0.22 in training, 0.88 to 1.13 on fresh data."""
    found = {(p["layers"], p["multiplier"], p["rank"]): p for p in tables.outcome("amsel/fig1").points}
    one, deep = found[1, 1, 8], found[3, 1, 8]
    guide = " ".join((ROOT / "docs" / "guide" / "training.md").read_text(encoding="utf-8").split())
    assert f"at $r = 8$ from {one['ours']:.2f} to {deep['ours']:.2f}. On fresh data" in guide
    assert f"an error of {deep['same_weights_fresh']:.2f}, worse than outputting zero" in guide
    assert f"where one layer has {one['same_weights_fresh']:.2f}." in guide
    assert deep["same_weights_fresh"] > 1
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f" {deep['same_weights_fresh']:.2f}" in readme
    memorised = [claim for claim in tables.outcome("rankfall/depth").claims if "memorised" in claim.statement]
    assert memorised
    assert [claim.evidence for claim in memorised if not claim.holds] == []


def test_what_the_prose_says_of_language_models(tables: ModuleType) -> None:
    """The best rank at every width, what low rank costs, rank against heads, and learned against rotary positions."""
    curves = {(one.models[8][0]["domain"], one.width): losses_of(one.models) for one in tables._main_curves()}
    assert {min(curve, key=curve.__getitem__) for curve in curves.values()} == {64}
    assert {width for _, width in curves} == {128, 256, 512}
    rank_8 = [excess(curve, 8) for curve in curves.values()]
    (claim,) = [one for one in tables.outcome(tables.TEXT).claims if "twice the rank" in one.statement]
    by_rank, by_heads = (part.split(" in the mean")[0].split()[-1] for part in claim.evidence.split(";"))
    readme, guide = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split()) for page in ("README.md", "docs/guide/text.md")
    )
    assert f"rank 8 costs {min(rank_8):.0f} to {max(rank_8):.0f} % over the best" in readme
    for text in (readme, guide):
        assert f"by {by_rank.replace('%', ' %')} in the mean" in text
        assert f"by {by_heads.replace('%', ' %')}" in text
    rank_4 = [excess(curve, 4) for curve in curves.values() if 4 in curve]
    assert f"Rank 4 costs {min(rank_4):.0f} to {max(rank_4):.0f} %" in guide
    assert f"(docs/guide/text.md), {len(tables._text_rows())} models" in readme


def test_what_the_prose_says_of_positions(tables: ModuleType) -> None:
    longer = {}
    for curve in shared_width_curves(tables._text_rows()):
        first = curve.models[8][0]
        if curve.width == 256 and first["steps"] == 3000:
            longer[first["positions"]] = curve.models
    learned, rotary = (losses_of(longer[kind]) for kind in ("learned", "rotary"))
    guide = " ".join((ROOT / "docs" / "guide" / "text.md").read_text(encoding="utf-8").split())
    assert f"there rank 4 costs {excess(learned, 4):.0f} to {excess(rotary, 4):.0f} %" in guide
    falls = [100 * (1 - curve[128] / curve[4]) for curve in (learned, rotary)]
    assert f"the loss falls by {falls[0]:.0f} %, with rotary positions by {falls[1]:.0f} %" in guide
    apart = max(learned[rank] / rotary[rank] - 1 for rank in {*learned} & {*rotary})
    assert f"After 98 million they are within {math.ceil(100 * apart)} %" in guide
    needed = {kind: longer[kind][128][0]["head_rank_needed"] for kind in longer}
    assert f"a head of rank 128 needs {needed['rotary']:.0f} directions" in guide
    assert f"under learned ones {needed['learned']:.0f}" in guide


def test_what_the_prose_says_of_equal_time_and_of_more_reading(tables: ModuleType) -> None:
    readme, guide = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split()) for page in ("README.md", "docs/guide/text.md")
    )
    rows = [row for row in tables._text_rows() if row["domain"] == "prose"]
    timed = by_rank([row for row in rows if row["budget"].startswith("step_seconds=")])
    (equal,) = [
        losses_of(one.models)
        for one in tables._main_curves()
        if one.width == 256 and one.models[8][0]["domain"] == "prose"
    ]
    losses = losses_of(timed)
    costs = {rank: (round(excess(losses, rank)), round(excess(equal, rank))) for rank in (8, 16, 32)}
    assert f"**, {costs[8][0]} % at rank 8 and {costs[16][0]} % at rank 16, since" in guide
    assert (
        f"Rank 8 then costs {costs[8][0]} % over the best, where equal parameters cost {costs[8][1]} %, rank 16"
        f" {costs[16][0]} % instead of {costs[16][1]}, rank 32 {costs[32][0]} % instead of {costs[32][1]}." in guide
    )
    assert f"At equal time of a step rank 8 costs {costs[8][0]} % instead of {costs[8][1]}." in readme
    widths = [f"{timed[rank][0]['feed_forward']:,}" for rank in sorted(timed)]
    assert f"feed-forwards of {', '.join(widths[:-1])} and {widths[-1]} at $r = 8, 16, 32, 64, 128$" in guide
    assert f"The best is $r = {min(losses, key=losses.__getitem__)}$" in guide
    wide = [row for row in rows if row["width"] == 512]
    once, twice = (losses_of(by_rank([row for row in wide if row["steps"] == steps])) for steps in (3000, 6000))
    assert all(twice[rank] > once[rank] for rank in twice)
    assert f"{twice[64]:.3f} instead of {once[64]:.3f} at $r = 64$" in guide
    assert f"rank 16 over 64 falls from {excess(once, 16):.1f} to {excess(twice, 16):.1f} %" in guide


def test_what_the_prose_says_of_four_points(tables: ModuleType) -> None:
    (point,) = [one for one in tables.outcome("amsel/fig4").points if (one["points"], one["rank"]) == (4, 1)]
    readme, guide = (
        " ".join((ROOT / page).read_text(encoding="utf-8").split())
        for page in ("README.md", "docs/guide/training.md")
    )
    known, ours, same, fresh = (point[name] for name in ("published", "ours", "same_weights_fresh", "trained_fresh"))
    assert f"{ours:.3f} in training (published {known:g}) is {same:.2f} on new data, and {fresh:.2f} when" in readme
    assert f"at an error of {known:g}." in guide
    assert f"ours comes to {ours:.3f} in training, and to **{same:.3f} on fresh data**" in guide
    assert f"the same model has {fresh:.3f}." in guide


def by_rank(rows: Sequence[Mapping[str, Any]]) -> dict[int, list[Mapping[str, Any]]]:
    return {rank: [row for row in rows if row["rank"] == rank] for rank in sorted({row["rank"] for row in rows})}


def losses_of(models: Mapping[int, Sequence[Mapping[str, Any]]]) -> dict[int, float]:
    return {rank: statistics.fmean(row["nats_per_byte"] for row in own) for rank, own in models.items()}


def excess(curve: Mapping[int, float], rank: int) -> float:
    """Per cent above the least loss."""
    return 100 * (curve[rank] / min(curve.values()) - 1)
