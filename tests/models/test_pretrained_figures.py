"""Figures on real models at smoke scale: tiny random models, every claim evaluated, a picture drawn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankfall.catalogue import FIGURES
from rankfall.drawing.canvas import save
from rankfall.errors import RequestError
from rankfall.figures.pretrained import subjects
from rankfall.figures.wu_fig4 import _opening_notes, _rows
from rankfall.models.texts import from_ids

# Their weights are too small for a temperature to matter under the causal mask.
FAIL_AT_SMOKE = {
    "wu/fig2-pretrained": {
        f"{who}, random: temperature 1/64 instead of 64 slows attention more under causal than under causal-window:4"
        for who in ("tiny BERT", "tiny Llama")
    },
    "wu/fig4": set[str](),
}


@pytest.mark.parametrize("figure", FAIL_AT_SMOKE)
def test_smoke(figure: str, tmp_path: Path) -> None:
    shares: list[float] = []
    outcome = FIGURES[figure].run("smoke", lambda what, share: shares.append(share))
    assert {claim.statement for claim in outcome.claims if not claim.holds} == FAIL_AT_SMOKE[figure]
    assert len(outcome.claims) > len(FAIL_AT_SMOKE[figure])
    assert {point["model"] for point in outcome.points} == {"tiny BERT", "tiny Llama"}
    assert shares == sorted(shares)
    assert outcome.draw is not None
    assert save(outcome.draw(), tmp_path / "figure.png").stat().st_size > 10_000


def test_figure_2_shows_three_models_under_four_masks() -> None:
    table = FIGURES["wu/fig2-pretrained"].run("smoke").tables["masks_and_temperatures"]
    masks = {"complete", "causal", "window:4", "causal-window:4"}
    for variant in ("attention", "attention + norm", "full model"):
        assert set(table[table["variant"] == variant]["mask"]) == masks


def test_one_token_twice_at_the_start_stays_one_direction_in_a_causal_model() -> None:
    bert, llama = (
        replace(one, batch=from_ids([[5, 5, 7, 9, 11, 13], [5, 7, 9, 11, 13, 15]])) for one in subjects("smoke", [])
    )
    for subject, expected in ((bert, [1.0, 1.0]), (llama, [0.0, 1.0])):
        last = [row["full_rank_share"] for row in _rows(subject) if row["layer"] == 4]
        assert last == expected
        assert "1 of 2 passages open with the same token twice" in _opening_notes(subject)[0]


def test_without_models_nothing_is_pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKFALL_MODELS", str(tmp_path))
    with pytest.raises(RequestError, match="required at least one pretrained model; got minilm left out"):
        list(subjects("quick", []))
