"""B-fig1 at smoke scale: its shares are those of the closed form and of the picture, and its claims can fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.drawing.read import curves, panels_of, same

from rankfall.catalogue import FIGURES
from rankfall.equilibria.known import TwoTokens
from rankfall.figures.wu_fig1 import circle, claims, simulate_basin, simulate_pairs


def test_shares_are_those_of_the_closed_form_and_of_the_picture() -> None:
    outcome = FIGURES["wu/fig1"].run("smoke")
    basin = next(table for table in outcome.tables.values() if "end_angle" in table)
    drawn = curves(panels_of(outcome.draw())[2])
    for name, chosen in (("apart", basin["apart"]), ("together", ~basin["apart"])):
        mine = np.degrees(basin[chosen])
        assert same(drawn[f"simulated: {name}"], mine["angle"], mine["end_angle"])
    assert len(drawn["simulated: apart"][0]) / len(basin) == pytest.approx(outcome.points[0]["ours"], abs=1e-3)
    alone, pairs = outcome.points
    assert alone["ours"] == pytest.approx(5 / 12, abs=1e-3)
    # Independent simulation: 7.7 per cent; three standard errors of 1000 pairs.
    assert pairs["ours"] == pytest.approx(0.077, abs=0.027)


def test_claims_fail_when_they_should() -> None:
    example = TwoTokens(2.0)
    starts = circle(torch.rand(50, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 6.28)
    ends = simulate_pairs(example, starts, 500, norm=True)
    bare = simulate_pairs(example, starts, 80, norm=False)
    basin = simulate_basin(example, 500)
    assert all(claim.holds for claim in claims(example, basin, starts, ends, 500, bare))
    wrong = replace(basin, predicted=TwoTokens(3.0).in_basin(basin.angles))
    assert not claims(example, wrong, starts, ends, 500, bare)[2].holds
    early = simulate_pairs(example, starts, 5, norm=False)
    assert not claims(example, basin, starts, ends, 500, early)[0].holds
    assert not claims(example, basin, starts, ends.flip(0), 500, bare)[1].holds
    strict = TwoTokens(2.0, delta=0.1)
    assert not claims(strict, simulate_basin(strict, 500), starts, ends, 500, bare)[4].holds
