"""The figure of the representing function draws its tables."""

from __future__ import annotations

import pytest
from tests.drawing.read import curves, panels_of, same

from rankfall.catalogue import FIGURES


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
