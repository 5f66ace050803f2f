"""The bound that `simulate` reports is never below what it measures, with and without a norm."""

from __future__ import annotations

import pytest

from rankfall.dynamics.experiment import Experiment, run
from rankfall.dynamics.step import Rule
from rankfall.dynamics.weights import WeightRecipe
from rankfall.masks import parse_schedule
from rankfall.norms import parse_norm

STATEMENTS = {"none": "B-thm1", "unit": "B-thm2", "rms": "B-thm2"}


@pytest.mark.parametrize("norm", STATEMENTS)
@pytest.mark.parametrize("mask", ["causal", "window:2", "complete", "star"])
def test_measured_mu_stays_below_the_bound(norm: str, mask: str) -> None:
    experiment = Experiment(
        masks=(parse_schedule(mask),),
        recipe=WeightRecipe(8, "random", "orthogonal"),
        tokens=6,
        layers=25,
        rule=Rule(parse_norm(norm)),
    )
    (report,) = run(experiment)
    assert report.theorem.statement == STATEMENTS[norm]
    assert report.theorem.applies, report.theorem.reason
    measured = [row["log10_mu"] * 2.302585092994046 for row in report.records]
    assert all(low <= high + 1e-9 for low, high in zip(measured, report.bound_log_mu.tolist(), strict=True))


def test_layer_norm_is_outside_both_theorems() -> None:
    experiment = Experiment(
        (parse_schedule("causal"),), WeightRecipe(8, "random", "orthogonal"), 6, 3, Rule(parse_norm("layer"))
    )
    (report,) = run(experiment)
    assert not report.theorem.applies
    assert "norm: layer" in report.theorem.reason
    assert report.bound_log_mu is None
