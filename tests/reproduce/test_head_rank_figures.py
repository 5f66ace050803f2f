"""The figures of head rank at smoke scale: they agree, their claims hold, and they can be drawn and written."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankfall.reproduce import find
from rankfall.reproduce.write import record, write


@pytest.mark.parametrize("identity", ["amsel/fig5", "amsel/random-features", "rankfall/theory-gap"])
def test_figure_agrees_and_is_written(identity: str, tmp_path: Path) -> None:
    figure = find(identity)
    seen: list[str] = []
    outcome = figure.run("smoke", lambda what, share: seen.append(what))
    assert outcome.agrees is True
    assert all(claim.holds for claim in outcome.claims)
    assert outcome.claims
    written = write(tmp_path, outcome, record(figure, outcome, "smoke", 0.0))
    assert written[0].suffix == ".png"
    assert all(path.stat().st_size > 100 for path in written if path.name != "points.csv")
