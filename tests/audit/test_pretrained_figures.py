"""Figures on real models at smoke scale: tiny random models, every claim evaluated, a picture drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.drawing.canvas import save
from rankfall.errors import RequestError
from rankfall.reproduce import find
from rankfall.reproduce.pretrained import subjects


@pytest.mark.parametrize("figure", ["wu/fig2-pretrained", "wu/fig4"])
def test_smoke(figure: str, tmp_path: Path) -> None:
    outcome = find(figure).run("smoke")
    assert outcome.claims
    assert outcome.agrees
    assert {point["model"] for point in outcome.points} == {"tiny BERT", "tiny Llama"}
    assert outcome.draw is not None
    assert save(outcome.draw(), tmp_path / "figure.png").stat().st_size > 10_000


def test_without_models_nothing_is_pretended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RANKFALL_MODELS", str(tmp_path))
    with pytest.raises(RequestError, match="required at least one pretrained model; got minilm left out"):
        list(subjects("quick", []))
