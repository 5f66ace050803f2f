"""Figures 2 and 3 of paper B with random weights, and rates against radius, at the smallest scale."""

from __future__ import annotations

import pytest
from tests.drawing.read import curves, panels_of, same

from rankfall.catalogue import FIGURES
from rankfall.drawing.canvas import save

# Claims of the paper that exact simulation contradicts, by a part of their statement: findings, not failures.
CONTRADICTED = {
    "wu/fig2": ["LayerNorm alone keeps random weights from collapsing"],
    "wu/fig3": ["a smaller temperature is still behind at the last layer"],
    "rankfall/rate-vs-radius": [],
}


@pytest.mark.parametrize("figure", CONTRADICTED)
def test_claims(figure, tmp_path) -> None:
    shares = []
    outcome = FIGURES[figure].run("smoke", lambda what, share: shares.append(share))
    assert shares
    assert all(0 <= share <= 1 for share in shares)
    failed = [claim.statement for claim in outcome.claims if not claim.holds]
    assert len(failed) == len(CONTRADICTED[figure]), failed
    for statement, expected in zip(failed, CONTRADICTED[figure], strict=True):
        assert expected in statement
    assert outcome.agrees is (not failed)
    assert all(len(table) > 0 for table in outcome.tables.values())
    picture = outcome.draw()
    assert save(picture, tmp_path / "figure.png").stat().st_size > 10_000
    if figure == "wu/fig3":
        table = outcome.tables["curves"]
        names = {"d_QK = 1/64": 1 / 64, "d_QK = 1": 1.0, "d_QK = 64": 64.0}
        for panel in panels_of(picture):
            assert curves(panel).keys() == names.keys()
            for name, temperature in names.items():
                mine = table[(table["mask"] == panel["title"]) & (table["d_qk"] == temperature)].iloc[1:]
                assert same(curves(panel)[name], mine["layer"], mine["log10_mu"])
