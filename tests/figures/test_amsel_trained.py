"""The trained figures at paper scale, from kept summaries: what is there, what is missing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.drawing.read import curves, panels_of

from rankfall.catalogue import FIGURES
from rankfall.figures.amsel_fig1 import cliff, figure_cells
from rankfall.figures.amsel_fig3 import depth_claims as position_claims
from rankfall.figures.amsel_fig4 import length_claims, memory_claims
from rankfall.figures.amsel_in_context import nothing_learned, rank_claims
from rankfall.figures.trained import STORE_VARIABLE, points
from rankfall.figures.trained_depth import PANELS, depth_claims
from rankfall.figures.trained_depth import figure_cells as depth_cells
from rankfall.store.store import Store
from rankfall.training.cell import Cell


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """An empty store, and no results that happen to ship with the checkout."""
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "runs"))
    monkeypatch.setattr("rankfall.figures.trained.committed_summaries", dict)
    return Store(tmp_path / "runs")


def keep(store: Store, cell: Cell, best: float, fresh: float, **more: Any) -> None:
    summary = {"status": "done", "mse_best": best, "mse_final": best, "mse_fresh": fresh, **more}
    store.write(cell, summary=summary, environment={"hardware": "none"})


def test_paper_scale_without_cells_says_so(store: Store) -> None:
    outcome = FIGURES["amsel/fig1"].run("paper")
    assert outcome.agrees is None
    assert len(outcome.points) == 63
    assert "654 of 654 cells are not trained yet" in outcome.notes[0]
    assert outcome.notes[0].endswith(
        "`rankfall sweep amsel-fig1 --store runs`, `rankfall sweep amsel-fig1-fresh --store runs` and "
        "`rankfall sweep amsel-fig1-extra --store runs` train them, and each goes on from what is there."
    )
    assert "`rankfall sweep amsel-fig1 --store runs`" in outcome.notes[0]


def test_paper_scale_compares_kept_cells(store: Store) -> None:
    cells = {(c.layers, c.multiplier, c.rank, c.data, c.seed): c for c in figure_cells("paper")}
    for seed, best in enumerate((0.0155, 0.0153)):
        keep(store, cells[1, 1, 64, "published", seed], best, 0.0198)
    keep(store, cells[1, 1, 32, "published", 0], 0.75, 0.8)
    keep(store, cells[1, 1, 32, "fresh", 0], 0.72, 0.72)
    keep(store, cells[1, 1, 64, "fresh", 0], 0.018, 0.0175)
    outcome = FIGURES["amsel/fig1"].run("paper")
    by_rank = {p["rank"]: p for p in outcome.points if (p["layers"], p["multiplier"]) == (1, 1)}
    assert by_rank[64]["agrees"] is True
    assert by_rank[64]["published"] == 0.01534
    assert (by_rank[64]["ours"], by_rank[64]["runs"]) == (0.0153, 2)
    assert by_rank[64]["spread"] == pytest.approx(0.0002)
    assert by_rank[64]["tolerance"] == pytest.approx(0.03 * 0.01534)
    assert by_rank[16]["tolerance"] is None
    assert by_rank[64]["same_weights_fresh"] == 0.0198
    assert by_rank[32]["agrees"] is False
    assert by_rank[16]["agrees"] is None
    assert outcome.agrees is False
    assert [claim.holds for claim in outcome.claims] == [True]
    assert "649 of 654" in outcome.notes[0]


def test_depth_on_the_sample_and_on_fresh_data(store: Store) -> None:
    cells = {(c.layers, c.multiplier, c.rank, c.recipe, c.seed): c for c in depth_cells("paper")}
    for layers, rank, loss, fresh, stable in (
        (1, 8, 0.84, 0.88, 0.87),
        (1, 64, 0.015, 0.02, 0.018),
        (3, 8, 0.22, 1.13, 0.66),
        (3, 64, 0.003, 0.16, 0.004),
    ):
        keep(store, cells[layers, 1, rank, "published", 0], loss, fresh)
        keep(store, cells[layers, 1, rank, "stable", 0], stable, stable)
    outcome = FIGURES["rankfall/depth"].run("paper")
    assert [claim.holds for claim in outcome.claims] == [True] * 4
    assert "worse at 1 of 1 ranks; at r = 8 0.84 falls to 0.22 in training" in outcome.claims[0].evidence
    assert "at 1 of 1 ranks: 0.87 to 0.66" in outcome.claims[1].evidence
    assert "244 of 252 cells are not trained yet" in outcome.notes[0]
    point = {(p["layers"], p["multiplier"], p["rank"]): p for p in outcome.points}[3, 1, 8]
    assert (point["published"], point["ours"], point["same_weights_fresh"]) == (0.2171, 0.22, 1.13)
    assert point["trained_fresh"] == 0.66
    assert {p["agrees"] for p in outcome.points} == {None}, "figure 1 is where they are compared"
    assert outcome.draw is not None
    panels = panels_of(outcome.draw())
    assert [panel["title"] for panel in panels[:3]] == [f"{title}, m = 1" for title in PANELS]
    drawn = curves(panels[0])["3 layers, ours, repeated sample (training loss)"]
    assert drawn[1] == [None, None, None, 0.22, None, None, 0.003], "a gap where nothing was trained"


def test_heads_against_published_medians(store: Store) -> None:
    statistics = {f"qk_{m}_{q}": v for m, v in (("angle", 179.4), ("frobenius", 8 * 2350.0)) for q in (25, 50, 75)}
    keep(store, Cell(seed=0), 0.0153, 0.0198, **statistics)
    outcome = FIGURES["amsel/fig2"].run("paper")
    assert {(p["measure"], p["heads"]): p["agrees"] for p in outcome.points if p["ours"] is not None} == {
        ("angle", 1): True,
        ("norm", 1): True,
    }
    assert outcome.draw is not None
    assert len(outcome.draw().axes) == 2


def test_agreement_is_three_percent_or_the_spread() -> None:
    def trained(*losses: float) -> list[tuple[Cell, dict[str, Any]]]:
        return [
            (Cell(seed=seed), {"status": "done", "mse_best": x, "mse_final": x, "mse_fresh": x})
            for seed, x in enumerate(losses)
        ]

    def verdict(*losses: float) -> bool | None:
        (point,) = points(trained(*losses), ("rank",), {(64,): 1.0})
        agrees: bool | None = point["agrees"]
        return agrees

    assert verdict(1.029) is True
    assert verdict(1.031) is False
    assert verdict(0.95, 1.02) is True
    assert verdict(0.85, 0.9) is False


def test_claims_can_fail() -> None:
    def point(**key: Any) -> dict[str, Any]:
        error = key.pop("error")
        return {"published": None, "ours": error, "trained_fresh": error, "same_weights_fresh": None, **key}

    flat = [point(layers=1, multiplier=1, rank=rank, error=0.5) for rank in (32, 64)]
    claim = cliff(flat, 64, 5.0)
    assert claim is not None
    assert not claim.holds
    assert cliff(flat[:1], 64, 5.0) is None
    assert "from r = 32 to 64 the error on fresh data of models trained on fresh data falls" in claim.statement
    half, full = ({**one, "same_weights_fresh": error} for one, error in zip(flat, (0.6, 0.1), strict=True))
    mixed = cliff([half, {**full, "trained_fresh": None}], 64, 5.0)
    assert mixed is not None
    assert "error on fresh data of models trained on the repeated sample" in mixed.statement
    assert (mixed.holds, mixed.evidence) == (True, "0.6 to 0.1, 6.0-fold"), "both ends by the same measure"
    trained_only = cliff([{**one, "trained_fresh": None} for one in flat], 64, 5.0)
    assert trained_only is not None
    assert "training loss on the repeated sample" in trained_only.statement
    nothing = [{**one, "trained_fresh": None, "ours": None} for one in flat]
    assert cliff(nothing, 64, 5.0) is None
    lengths = [point(points=n, rank=1, error=1 / n) for n in (2, 4)]
    assert not length_claims(lengths)[0].holds
    trained_otherwise = {**lengths[1], "trained_fresh": None, "ours": 0.9}
    assert length_claims([lengths[0], trained_otherwise])[0].evidence == "N = 2: 0.5, N = 4: 0.9", "by one measure"
    assert length_claims([lengths[0], {**trained_otherwise, "ours": None}]) == []
    codes = [
        point(layers=layers, positions=positions, rank=1, error=0.5)
        for layers in (1, 3)
        for positions in ("none", "concatenated")
    ]
    assert not position_claims(codes)[0].holds
    assert position_claims([{**codes[0], "ours": None, "trained_fresh": None}, *codes[1:]]) == []
    worse = [point(layers=2, rank=rank, error=error) for rank, error in ((1, 0.3), (16, 0.4))]
    assert [claim.holds for claim in rank_claims(worse)] == [False]
    unlearned = [point(layers=2, rank=rank, error=0.99) for rank in (1, 16)]
    assert rank_claims(unlearned) == []
    assert nothing_learned(unlearned)
    assert not nothing_learned(worse)


def test_memory_is_told_from_learning() -> None:
    def point(rank: int, ours: float, same: float) -> dict[str, Any]:
        numbers = {"ours": ours, "same_weights_fresh": same, "trained_fresh": None}
        return {"points": 4, "rank": rank, **numbers}

    memorised, learned, neither = point(1, 0.01, 0.9), point(8, 0.2, 0.3), point(16, 0.8, 0.9)
    claims = memory_claims([memorised, learned, neither, point(64, 0.01, 0.1)])
    assert [claim.holds for claim in claims] == [True, False], "full rank is not asked, nor who has learned nothing"
    assert claims[0].evidence == "0.01 in training, 0.9 on fresh data"


def test_claims_about_depth_can_fail() -> None:
    def point(layers: int, rank: int, ours: float | None, same: float | None, fresh: float | None) -> dict[str, Any]:
        numbers = {"ours": ours, "same_weights_fresh": same, "trained_fresh": fresh}
        return {"layers": layers, "multiplier": 1, "rank": rank, **numbers}

    one = [point(1, 8, 0.8, 0.9, 0.9), point(1, 64, 0.1, 0.1, 0.5)]
    honest = [point(3, 8, 0.5, 0.6, 0.95), point(3, 64, 0.1, 0.1, 0.4)]
    assert [claim.holds for claim in depth_claims([*one, *honest], 64)] == [False] * 4
    unlearned = [point(3, 8, 1.0, 1.0, None), point(3, 64, 1.0, 1.0, None)]
    assert depth_claims([*one, *unlearned], 64) == [], "no gain that could be memorised, nothing on fresh data"
    assert depth_claims(honest, 64) == [], "nothing to compare with"
