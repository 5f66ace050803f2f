"""What a reproduction may say of itself: published points alone agree, and only at the paper's scale."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

import rankfall
from rankfall.figures.base import Claim, FigureOutcome, Reproduction, Scale
from rankfall.report.gallery import gallery

GOOD, BAD = Claim("it falls", True, "2-fold"), Claim("it rises", False, "not")


def point(agrees: bool | None) -> dict[str, object]:
    return {"published": None if agrees is None else 1.0, "ours": 1.0, "agrees": agrees}


@pytest.mark.parametrize(
    ("points", "claims", "scale", "agrees", "words"),
    [
        ([None], [GOOD], "smoke", None, "its shape holds at this scale"),
        ([True], [GOOD], "quick", None, "its shape holds at this scale"),
        ([None], [BAD], "quick", None, "its shape does NOT hold at this scale"),
        ([True, True], [GOOD], "paper", True, "agrees with the paper in 2 of 2 published points"),
        ([True, True], [BAD], "paper", True, "agrees with the paper in 2 of 2 published points, but not every claim"),
        ([True, False], [GOOD], "paper", False, "does NOT agree: 1 of 2 published points met"),
        ([None], [GOOD], "paper", None, "no number published; its claims hold"),
        ([None], [], "paper", None, "nothing to decide: ours alone"),
    ],
)
def test_words(points: list[bool | None], claims: list[Claim], scale: Scale, agrees: bool | None, words: str) -> None:
    outcome = FigureOutcome([point(one) for one in points], claims)
    figure = Reproduction("a/b", "title", (), lambda scale, progress=None: outcome)  # type: ignore[misc]
    record = outcome.record(figure, scale, 1.0)
    assert record["agrees"] is agrees
    assert record["standing"].startswith(words)
    document = gallery([(figure, outcome, record)], "rankfall reproduce")
    assert document.answers[0].verdict == record["standing"]
    assert ("agree with the papers" in document.summary) is (agrees is not None)


def test_figures_of_an_earlier_command_stay_in_the_folder(tmp_path: Path) -> None:
    first, second = rankfall.reproduce("wu/fig1", scale="smoke"), rankfall.reproduce("amsel/fig5", scale="smoke")
    (tmp_path / "outcomes.json").write_text("no outcomes")
    for one in (first, second, second):
        page = one.save(tmp_path).read_text(encoding="utf-8")
    kept = json.loads((tmp_path / "outcomes.json").read_text())
    assert [one["id"] for one in kept] == ["wu/fig1", "amsel/fig5"]
    assert kept[0]["standing"] == first.figures[0]["standing"]
    assert "Also in this folder" in page
    assert f"wu/fig1, {first.figures[0]['title']}: {first.figures[0]['standing']}" in html.unescape(page)
    assert {"wu-fig1.svg", "amsel-fig5.svg"} <= {path.name for path in tmp_path.iterdir()}
    assert "Also in this folder" not in second.save(tmp_path / "alone").read_text(encoding="utf-8")
