"""Figures on real models: what they show of which models, and that nothing is pretended without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rankfall.catalogue import FIGURES
from rankfall.errors import RequestError
from rankfall.figures.pretrained import subjects
from rankfall.figures.wu_fig4 import _opening_notes, _rows
from rankfall.models.inputs.texts import from_ids


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
