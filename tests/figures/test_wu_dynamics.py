"""Figure 3 of paper B at the smallest scale: the picture shows the table."""

from __future__ import annotations

from tests.drawing.read import curves, panels_of, same

from rankfall.catalogue import FIGURES


def test_fig3_draws_its_table() -> None:
    outcome = FIGURES["wu/fig3"].run("smoke")
    assert outcome.draw is not None
    table = outcome.tables["curves"]
    names = {"d_QK = 1/64": 1 / 64, "d_QK = 1": 1.0, "d_QK = 64": 64.0}
    for panel in panels_of(outcome.draw()):
        assert curves(panel).keys() == names.keys()
        for name, temperature in names.items():
            mine = table[(table["mask"] == panel["title"]) & (table["d_qk"] == temperature)].iloc[1:]
            assert same(curves(panel)[name], mine["layer"], mine["log10_mu"])
