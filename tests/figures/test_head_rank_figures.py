"""The figures of head rank at smoke scale: they agree, their claims hold, and they can be drawn and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.catalogue import FIGURES
from rankfall.report.gallery import gallery
from rankfall.report.page import write


@pytest.mark.parametrize("identity", ["amsel/fig5", "amsel/random-features", "rankfall/theory-gap"])
def test_figure_agrees_and_is_written(identity: str, tmp_path: Path) -> None:
    figure = FIGURES[identity]
    seen: list[str] = []
    outcome = figure.run("smoke", lambda what, share: seen.append(what))
    assert outcome.agrees is True
    assert all(claim.holds for claim in outcome.claims)
    assert outcome.claims
    page = write(gallery([(figure, outcome, outcome.record(figure, "smoke", 0.0))], "a test"), tmp_path)
    assert figure.title in page.read_text(encoding="utf-8")
    assert len(list(tmp_path.rglob("*.png"))) == 1
