"""The figures of head rank at smoke scale: they agree, their claims hold, and they can be drawn and written."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.drawing.read import curves, panels_of, same

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


def test_fig5_draws_its_tables() -> None:
    outcome = FIGURES["amsel/fig5"].run("smoke")
    *functions, last = panels_of(outcome.draw())
    table, peaks = outcome.tables["weight_function"], outcome.tables["peaks"]
    assert [panel["title"] for panel in functions] == ["d = 4", "d = 6", "d = 8"]
    for panel, column in zip(functions, table.columns[1:], strict=True):
        assert same(curves(panel)[""], table["angle"], table[column])
        assert [label for _, label in panel["x"]["ticks"]] == ["-π", "0", "π"]
    drawn = curves(last)
    assert same(drawn["represents the target"], peaks["dim"], peaks["log10_representing"])
    assert same(drawn["published scaling"], peaks["dim"], peaks["log10_published_scaling"])
    dims, heights = drawn["published"]
    assert [10**height for height in heights] == pytest.approx([p["published"] for p in outcome.points], rel=1e-5)
    assert dims == [point["dim"] for point in outcome.points]
