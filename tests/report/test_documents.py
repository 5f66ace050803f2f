"""Simulations, audits and comparisons as reports: what they answer, and that every number comes from the result."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import rankfall
from rankfall.api.result import Result
from rankfall.cli.main import run
from rankfall.dynamics.experiment import Experiment
from rankfall.dynamics.experiment import run as simulate
from rankfall.dynamics.weights import WeightRecipe
from rankfall.masks import parse_schedule
from rankfall.models.audit import audit
from rankfall.models.result import AuditFindings
from rankfall.models.verdict import Reason, advice
from rankfall.report.audit import audit_document, comparison_document, depth_table, labels
from rankfall.report.page import render
from rankfall.report.simulation import simulation_document
from rankfall.report.verb_definitions import definitions_for
from rankfall.store.results import committed_summaries
from tests.drawing.read import curves, panels_of, same
from tests.models.small import save_small, some_text


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> tuple[Path, Path]:
    base = tmp_path_factory.mktemp("models")
    return save_small(base / "bert", "bert"), save_small(base / "llama", "llama", num_key_value_heads=2)


@pytest.fixture(scope="module")
def audits(folders: tuple[Path, Path]) -> tuple[AuditFindings, AuditFindings]:
    first, second = (audit(str(one), [some_text(40)], tokens=16, controls=False, ablation=False) for one in folders)
    return first, second


def test_simulation_answers_for_every_mask() -> None:
    experiment = Experiment(
        masks=tuple(parse_schedule(name) for name in ("causal", "complete", "in-star")),
        recipe=WeightRecipe(6, "random", "orthogonal"),
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
    grids = {grid.name: grid.table for grid in document.grids()}
    assert len(grids["layers"]) == 3 * 41
    assert "a title" in render(document)
    # Words and picture are the tables' numbers.
    rates = grids["rates"].set_index("mask")
    assert f"by the factor {rates.loc['causal', 'measured']:.4g} a layer" in causal.verdict
    assert f"second eigenvalue of uniform attention: {rates.loc['causal', 'second eigenvalue']:.4g}" in causal.reasons
    theorem = next(reason for reason in causal.reasons if "B-thm1" in reason)
    assert theorem == f"B-thm1 applies and promises at most {reports[0].theorem.bound.rate:.6g}"
    assert rates.loc["causal", "theorem's bound"] == reports[0].theorem.bound.rate
    deep, _, effective, energy = panels_of(document.pictures()[0].figure)
    for mask, mine in grids["layers"].groupby("mask"):
        assert same(curves(effective)[mask], mine["layer"], mine["effective_rank"])
        assert same(curves(energy)[mask], mine["layer"], mine["energy_rank"])
        if mask != "complete":
            assert same(curves(deep)[mask], mine["layer"], mine["log10_mu"])


def test_audit_says_what_one_would_change(audits) -> None:
    document = audit_document(audits[0], "rankfall audit")
    asked = {answer.question: answer.verdict for answer in document.answers}
    assert "rankfall plan --dim 32" in asked["What would one change?"]
    assert "Does it keep its token rank?" in asked


def test_pictures_of_an_audit_are_its_tables(audits) -> None:
    document = audit_document(audits[1], "rankfall audit")
    tables = {grid.name: grid.table for grid in document.grids()}
    pictures = {picture.name: panels_of(picture.figure) for picture in document.pictures()}
    depth = tables["depth"]
    depth = depth[(depth["part"] == "boundary") & (depth["sinks"] == "with")]
    unit = depth[depth["view"] == "unit"]
    names = ("effective_rank", "energy_rank", "first_direction_share", "relative_mu")
    names += ("mean_abs_cosine", "min_singular_value")
    for panel, name in zip(pictures["token_rank"], names, strict=True):
        assert same(curves(panel)["model"], unit["layer"], unit[name])
    heads = tables["heads"].sort_values(["head", "layer"])
    for rank, views, maps in zip(
        ("effective_rank", "energy_rank"), pictures["views"], pictures["head_rank"], strict=True
    ):
        for view, mine in depth.groupby("view"):
            assert same(curves(views)[view], mine["layer"], mine[rank])
        (heat,) = maps["series"]
        assert heat["values"] == pytest.approx(heads[f"qk_{rank}"].tolist(), rel=1e-6)
    first = document.answers[0]
    thresholds = audits[1].verdict.thresholds
    assert first.verdict == audits[1].verdict.headline
    assert any(f"below {thresholds.collapsed_energy_rank} at the last layer" in reason for reason in first.reasons)


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
    shares = {}
    for name, one in zip(("bert", "llama"), audits, strict=True):
        ranks = [row.values["unit"]["energy_rank"] for row in one.boundaries]
        shares[name] = ranks[-1] / max(ranks)
    better, worse = sorted(shares, key=shares.__getitem__, reverse=True)
    told = document.answers[0].verdict
    assert told.startswith(f"{better} ({shares[better]:.0%} of its highest")
    assert f"over {worse} ({shares[worse]:.0%} of its highest" in told
    (picture,) = document.pictures()
    assert same(curves(panels_of(picture.figure)[0])["bert"], table[table["model"] == "a"]["depth"], mine)
    heads = document.grids()[1].table
    ranks = ["qk_effective_rank", "qk_energy_rank"]
    medians = heads[heads["model"] == "llama"]
    own = audits[1].tables()["heads"].groupby("layer")[ranks].median()
    assert medians[ranks].to_numpy().tolist() == own.to_numpy().tolist()
    assert medians["share"].tolist() == (own["qk_effective_rank"] / 8).tolist()
    assert labels(audits[0], audits[0]) == ("bert (A)", "bert (B)")


def test_every_column_of_a_report_is_defined(audits) -> None:
    experiment = Experiment((parse_schedule("causal"),), WeightRecipe(4, "random", "orthogonal"), tokens=5, layers=6)
    documents = [
        audit_document(audits[0], "rankfall audit"),
        comparison_document(*audits, "rankfall compare"),
        simulation_document(simulate(experiment), "t", "rankfall simulate"),
    ]
    for grid in (grid for document in documents for grid in document.grids()):
        assert [name for name in grid.table.columns if not grid.definitions.get(name)] == [], grid.name
    heads = next(grid.table for grid in documents[0].grids() if grid.name == "heads")
    assert heads["self_check"].dtype == float, "one number, not a dictionary in a cell"
    assert not heads["notes"].str.contains(r"[\[{]").any()


@pytest.mark.parametrize(
    "made",
    [
        lambda: rankfall.bounds(16, 4, heads=2, error=0.1),
        lambda: rankfall.bounds(8),
        lambda: rankfall.bounds(8, 4, heads=2, target="biased", value_norm=2.0),
        lambda: rankfall.plan(64, time=False),
        lambda: rankfall.simulate("causal", tokens=6, width=4, layers=5),
        lambda: rankfall.equilibrium(tokens=4, width=3, rank=2),
        lambda: rankfall.survey(["bert", "llama"]),
        lambda: rankfall.coverage(),
    ],
    ids=["bounds", "bounds-table", "bounds-biased", "plan", "simulate", "equilibrium", "survey", "coverage"],
)
def test_every_column_of_a_verb_is_defined(made: Callable[[], Result]) -> None:
    result = made()
    known = definitions_for(result.verb)
    for name, table in result.tables().items():
        columns = [column for column in table.columns if not column.isdigit()]  # coordinates of tokens and matrices
        assert [column for column in columns if not known.get(column)] == [], name


def test_columns_of_stored_runs_are_defined() -> None:
    known = definitions_for("runs")
    row = next(iter(committed_summaries().values()))
    assert [name for name in row if not known.get(name)] == []


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
