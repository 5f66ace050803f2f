"""Simulations, audits and comparisons as reports: what they answer, and that every number comes from the result."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from rankfall.catalogue import FIGURES
from rankfall.cli.main import run
from rankfall.dynamics.experiment import Experiment
from rankfall.dynamics.experiment import run as simulate
from rankfall.dynamics.weights import Recipe
from rankfall.masks import parse_schedule
from rankfall.models.audit import audit
from rankfall.models.result import AuditResult
from rankfall.models.verdict.reasons import Reason, advice
from rankfall.report.audit import audit_document, comparison_document, depth_table, labels
from rankfall.report.gallery import gallery
from rankfall.report.page import render
from rankfall.report.simulation import simulation_document
from tests.models.small import save_small, some_text


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    return save_small(base / "bert", "bert"), save_small(base / "llama", "llama", num_key_value_heads=2)


@pytest.fixture(scope="module")
def audits(folders: tuple[Path, Path]) -> tuple[AuditResult, AuditResult]:
    first, second = (audit(str(one), [some_text(40)], tokens=16, controls=False, ablation=False) for one in folders)
    return first, second


def test_simulation_answers_for_every_mask() -> None:
    experiment = Experiment(
        masks=tuple(parse_schedule(name) for name in ("causal", "complete", "in-star")),
        recipe=Recipe(6, "random", "orthogonal"),
        tokens=5,
        layers=40,
    )
    reports = simulate(experiment)
    document = simulation_document(reports, "a title", "rankfall simulate")
    causal, complete, in_star = document.answers
    assert "exponentially" in causal.verdict
    assert any("B-thm1 applies" in reason for reason in causal.reasons)
    assert "cubically" in complete.verdict
    assert "do not collapse" in in_star.verdict
    assert in_star.level == "good"
    assert any("does not apply" in reason and "no token that reaches" in reason for reason in in_star.reasons)
    layers = next(grid for grid in document.grids() if grid.name == "layers").table
    assert len(layers) == 3 * 41
    assert "a title" in render(document)


def test_audit_says_what_one_would_change(audits) -> None:
    document = audit_document(audits[0], "rankfall audit")
    asked = {answer.question: answer.verdict for answer in document.answers}
    assert "rankfall plan --dim 32" in asked["What would one change?"]
    assert "Does it keep its token rank?" in asked


def test_advice_follows_from_the_findings() -> None:
    assert advice("kept", []).text == "nothing here calls for a change"
    assert "local mask" in advice("collapsed", []).text
    assert "tokens of length one" in advice("kept", [Reason("sinks", "x", {})]).text


def test_comparison_lays_models_over_relative_depth(audits) -> None:
    document = comparison_document(*audits, "rankfall compare")
    assert document.title == "bert beside llama"
    table = depth_table([("a", audits[0]), ("b", audits[1])])
    assert table.groupby("model")["depth"].agg(["min", "max"]).to_numpy().tolist() == [[0, 1], [0, 1]]
    mine = table[table["model"] == "a"]["effective_rank"].tolist()
    assert mine == [row.values["unit"]["effective_rank"] for row in audits[0].boundaries]
    assert labels(audits[0], audits[0]) == ("bert (A)", "bert (B)")


def test_every_number_of_a_report_is_defined(audits) -> None:
    experiment = Experiment((parse_schedule("causal"),), Recipe(4, "random", "orthogonal"), tokens=5, layers=6)
    documents = [
        audit_document(audits[0], "rankfall audit"),
        comparison_document(*audits, "rankfall compare"),
        simulation_document(simulate(experiment), "t", "rankfall simulate"),
    ]
    for grid in (grid for document in documents for grid in document.grids()):
        numbers = grid.table.select_dtypes("number").columns
        assert [name for name in numbers if not grid.definitions.get(name)] == [], grid.name


@pytest.mark.parametrize("identity", ["amsel/fig4", "amsel/fig5", "wu/fig1", "wu/fig3", "rankfall/equilibria"])
def test_every_number_of_the_gallery_is_defined(identity: str) -> None:
    figure = FIGURES[identity]
    record = {"seconds": 1.0, "scale": "smoke"}
    document = gallery([(figure, figure.run("smoke"), record)], "rankfall reproduce --all")
    assert document.grids()
    for grid in document.grids():
        numbers = grid.table.select_dtypes(["number", "bool"]).columns
        assert [name for name in numbers if not grid.definitions.get(name)] == [], grid.name


def test_compare_verb(folders, tmp_path: Path, capsys) -> None:
    text = tmp_path / "text.txt"
    text.write_text(some_text(40))
    with pytest.raises(SystemExit) as stopped:
        run(
            [
                "compare",
                *map(str, folders),
                "--text",
                str(text),
                "--tokens",
                "16",
                "--out",
                str(tmp_path / "r"),
                "--json",
            ]
        )
    assert not stopped.value.code
    record = json.loads(capsys.readouterr().out)
    assert [one["label"] for one in record["models"]] == ["bert", "llama"]
    assert (tmp_path / "r" / "report.html").exists()
    assert len(pd.read_csv(tmp_path / "r" / "depth.csv")) == len(record["depth"]) == 8


def test_simulate_writes_a_report(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit) as stopped:
        run(
            [
                "simulate",
                "--mask",
                "causal",
                "--tokens",
                "5",
                "--dim",
                "4",
                "--layers",
                "12",
                "--out",
                str(tmp_path),
                "--json",
            ]
        )
    assert not stopped.value.code
    assert json.loads(capsys.readouterr().out)["mask"]["name"] == "causal"
    assert {"report.html", "collapse.svg", "layers.parquet"} <= {path.name for path in tmp_path.iterdir()}
