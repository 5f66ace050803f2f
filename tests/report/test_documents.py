"""Simulations, audits and comparisons as reports: what they answer, and that every number comes from the result."""

from __future__ import annotations

import json
import math
import re
import shutil
import statistics
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

import rankfall
from rankfall.api.result import Result
from rankfall.catalogue import MEASURES
from rankfall.dynamics.experiment import Experiment
from rankfall.dynamics.experiment import run as simulate
from rankfall.dynamics.weights import WeightRecipe
from rankfall.masks import parse_schedule
from rankfall.models.audit import audit
from rankfall.models.result import AuditFindings
from rankfall.report.audit import audit_document
from rankfall.report.page import render
from rankfall.report.simulation import simulation_document
from rankfall.report.verb_definitions import definitions_for
from rankfall.store.results import committed_summaries
from tests.calls import answer
from tests.drawing.read import curves, panels_of, same
from tests.models.small import save_small, some_text
from tests.models.trained import save_checkpoints


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
    assert asked["What would one change?"] == audits[0].verdict.reasons[-1].text
    assert {"Do tokens become aligned?", "Are distinctions between tokens lost?", "Do a few tokens dominate?"} <= set(
        asked
    )


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
    kept, needed, shared = pictures["latents"]
    layers, energy = tables["key_values"], tables["key_value_energy"]
    for name, label in (
        ("by_weights", "by weights, median layer"),
        ("on_tokens", "on the tokens read, median layer"),
    ):
        typical = energy.groupby("latent")[name].median()
        assert same(curves(kept)[label], typical.index, typical)
    assert same(curves(needed)["99 % by weights"], layers["layer"], layers["weights_99"])
    assert same(curves(needed)["90 % on the tokens read"], layers["layer"], layers["tokens_90"])
    (heat,) = shared["series"]
    assert heat["values"] == pytest.approx([share for one in audits[1].key_values for share in one.overlap], rel=1e-6)
    asked = {answer.question: answer.verdict for answer in document.answers}
    said = next(one.text for one in audits[1].verdict.reasons if one.topic == "keys and values")
    assert asked["How small a latent could hold keys and values?"] == said
    first = document.answers[0]
    assert first.verdict == audits[1].verdict.headline
    for one, finding in zip(document.answers[1:4], audits[1].verdict.findings, strict=True):
        assert (one.verdict, " ".join(one.reasons[:-1])) == (finding.status, finding.text)
        for name, value in finding.thresholds.items():
            assert f"{name.replace('_', ' ')} {value:g}" in one.reasons[-1]


@pytest.fixture(scope="module")
def compared(folders: tuple[Path, Path], tmp_path_factory) -> rankfall.ComparisonResult:
    return rankfall.compare(*folders, some_text(40), tokens=16, store=tmp_path_factory.mktemp("store"))


def test_comparison_lays_models_over_relative_depth(audits, compared) -> None:
    document = compared._document("rankfall compare")
    assert document.title == "bert beside llama"
    table = compared.to_frame()
    assert table.groupby("model")["depth"].agg(["min", "max"]).to_numpy().tolist() == [[0, 1], [0, 1]]
    mine = table[table["model"] == "bert"]["effective_rank"].tolist()
    assert mine == [row.values["unit"]["effective_rank"] for row in audits[0].boundaries]
    shares = {}
    for name, one in zip(("bert", "llama"), audits, strict=True):
        ends = (one.boundaries[-1], one.boundaries[0])
        pairs = [pair for pair in zip(*(row.per_text for row in ends), strict=True) if pair[0].tokens >= 16]
        ratios = [now.rarefied[16] / then.rarefied[16] for now, then in pairs]
        shares[name] = math.exp(statistics.median(math.log(ratio) for ratio in ratios))
    better, worse = sorted(shares, key=shares.__getitem__, reverse=True)
    told = document.answers[0].verdict
    assert told.startswith(f"{better} ({shares[better]:.0%} of its embeddings')")
    assert (
        f"over {worse} ({shares[worse]:.0%} of its embeddings'), by the centred effective rank of 16 tokens" in told
    )
    (picture,) = document.pictures()
    assert same(curves(panels_of(picture.figure)[0])["bert"], table[table["model"] == "bert"]["depth"], mine)
    grids = {grid.name: grid.table for grid in document.grids()}
    heads = grids["heads"]
    ranks = ["qk_effective_rank", "qk_energy_rank"]
    medians = heads[heads["model"] == "llama"]
    own = audits[1].tables()["heads"].groupby("layer")[ranks].median()
    assert medians[ranks].to_numpy().tolist() == own.to_numpy().tolist()
    assert medians["share"].tolist() == (own["qk_effective_rank"] / 8).tolist()
    # Differences are the second's numbers minus the first's, of layers and of heads.
    theirs = [row.values["unit"]["effective_rank"] for row in audits[1].boundaries]
    changes = grids["differences"]["effective_rank"].tolist()
    assert changes == pytest.approx([b - a for a, b in zip(mine, theirs, strict=True)])
    each = [[head.qk_effective_rank for head in one.heads] for one in audits]
    changes = grids["head_differences"]["qk_effective_rank"].tolist()
    assert changes == pytest.approx([b - a for a, b in zip(*each, strict=True)])
    most = grids["head_differences"].loc[grids["head_differences"]["qk_effective_rank"].abs().idxmax()]
    asked = {answer.question: answer.verdict for answer in document.answers}
    assert f"most in head {most['head']:.0f} of layer {most['layer']:.0f}:" in asked["Do the heads change?"]


def test_a_model_beside_itself_does_not_differ(folders, tmp_path: Path) -> None:
    same = rankfall.compare(folders[0], folders[0], some_text(40), tokens=16, store=tmp_path)
    assert same.labels == ("bert (A)", "bert (B)")
    assert not same.tables()["differences"].drop(columns=["layer", "other_layer", "depth"]).to_numpy().any()
    assert not same.tables()["head_differences"].drop(columns=["layer", "head"]).to_numpy().any()
    assert same.verdict.trend == "steady"


def test_a_comparison_takes_every_option_of_an_audit(folders, tmp_path: Path) -> None:
    bare = rankfall.compare(*folders, some_text(40), tokens=16, store=tmp_path, heads=False)
    assert "heads" not in bare.tables()
    with pytest.raises(TypeError, match="unexpected keyword argument 'tokenz'"):
        rankfall.compare(*folders, some_text(40), store=tmp_path, tokenz=3)


def test_two_models_that_can_be_audited_are_needed(folders, tmp_path: Path) -> None:
    with pytest.raises(rankfall.RequestError, match="two models that can be audited; got nothing, which could not: "):
        rankfall.compare(folders[0], tmp_path / "no" / "nothing", some_text(40), store=tmp_path / "store")


def unknown_type(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "no-such-type"}))


def not_even_weights(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"nothing")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (shutil.rmtree, "a model folder, a .gguf file, a hub id or one of minilm"),
        (lambda folder: (folder / "config.json").unlink(), "required config.json in other"),
        (unknown_type, "a model_type that the transformers library knows"),
        (not_even_weights, "safetensors"),
        (lambda folder: folder.with_suffix(".gguf").write_bytes(b"nothing"), "GGUF"),
    ],
    ids=["missing", "without configuration", "of unknown type", "without weights", "a damaged GGUF file"],
)
def test_a_second_model_that_cannot_be_opened_is_refused_before_the_first_is_audited(
    folders, tmp_path: Path, spoil, told: str
) -> None:
    other = tmp_path / "other"
    shutil.copytree(folders[1], other)
    spoil(other)
    named = next(tmp_path.glob("*.gguf"), other)
    with pytest.raises(rankfall.RequestError, match=f"got other.*, which could not: .*{re.escape(told)}"):
        rankfall.compare(folders[0], named, some_text(40), tokens=16, store=tmp_path / "store")
    assert not (tmp_path / "store").exists()


def test_too_few_tokens_are_said_to_be_too_few(folders, tmp_path: Path) -> None:
    for few in (
        lambda: rankfall.compare(*folders, some_text(40), tokens=1, store=tmp_path),
        lambda: rankfall.series(list(folders), some_text(40), tokens=1, store=tmp_path),
    ):
        with pytest.raises(rankfall.RequestError, match=r"^required tokens to be a whole number .* 2; got 1; "):
            few()
    with pytest.raises(rankfall.RequestError, match=r"required more than 2 tokens; got 2; .* `rankfall audit`"):
        rankfall.series(folders[0], some_text(40), tokens=2, store=tmp_path)


def test_another_report_is_not_written_over(compared, folders, tmp_path: Path) -> None:
    page = compared.save(tmp_path)
    compared.save(tmp_path)
    page.write_text(page.read_text().replace("bert beside llama", "Audit of &lt;bert&gt;"))
    before = page.read_text()
    with pytest.raises(rankfall.RequestError, match="got a folder that holds `Audit of <bert>`; choose another"):
        compared.save(tmp_path)
    for refused in (
        lambda: rankfall.compare(*folders, some_text(40), store=tmp_path / "s", out=tmp_path),
        lambda: rankfall.series(list(folders), some_text(40), store=tmp_path / "s", out=tmp_path),
    ):
        with pytest.raises(rankfall.RequestError, match="without another report in it"):
            refused()
    assert page.read_text() == before
    assert not (tmp_path / "s").exists(), "refused before anything is done"


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> rankfall.SeriesResult:
    base = tmp_path_factory.mktemp("run")
    save_checkpoints(base, (0, 3, 6), layers=2)
    return rankfall.series(f"{base}/checkpoint-*", some_text(60), tokens=12, store=base / "audits")


def test_a_series_is_drawn_as_maps_of_layers_by_checkpoints(series) -> None:
    document = series._document("rankfall audit")
    assert document.title == "Series of checkpoint-*"
    tables = {grid.name: grid.table for grid in document.grids()}
    maps, others = (panels_of(picture.figure) for picture in document.pictures())
    depth = tables["depth"]
    drawn = {panel["title"]: panel["series"][0] for panel in [*maps, *others] if panel["title"] != "loss"}
    measures = [name for name in depth.columns if name not in ("model", "step", "layer", "depth", "most")]
    assert set(MEASURES.names) == set(measures)
    # One map for each measure, and one for the heads.
    assert len(drawn) == len(measures) + 1
    values = depth.sort_values(["layer", "step"])["effective_rank"].tolist()
    assert drawn["effective rank"]["values"] == pytest.approx(values, rel=1e-6)
    assert drawn["effective rank"]["size"] == [3, 3]
    assert maps[0]["x"]["ticks"] == [[0.0, "0"], [1.0, "3"], [2.0, "6"]]
    heads = tables["heads"].sort_values(["layer", "step"])["qk_effective_rank"].tolist()
    assert drawn["median head, query/key effective rank"]["values"] == pytest.approx(heads, rel=1e-6)
    assert [answer.verdict for answer in document.answers] == [reason.text for reason in series.verdict.reasons]
    assert "Series of checkpoint-*" in render(document)


def test_every_column_of_a_report_is_defined(audits, compared, series) -> None:
    experiment = Experiment((parse_schedule("causal"),), WeightRecipe(4, "random", "orthogonal"), tokens=5, layers=6)
    documents = [
        audit_document(audits[0], "rankfall audit"),
        compared._document("rankfall compare"),
        series._document("rankfall audit"),
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
    places = ("--text", text, "--out", tmp_path / "r", "--store", tmp_path / "s")
    record = answer(capsys, "compare", *folders, "--tokens", "16", *places)
    assert [one["label"] for one in record["models"]] == ["bert", "llama"]
    assert (tmp_path / "r" / "report.html").exists()
    assert len(pd.read_csv(tmp_path / "r" / "depth.csv")) == len(record["depth"]) == 8
    assert len(record["differences"]) == 4
    assert len(record["head_differences"]) == 12


def test_simulate_writes_a_report(tmp_path: Path, capsys) -> None:
    sizes = ("--tokens", "5", "--dim", "4", "--layers", "12")
    assert answer(capsys, "simulate", "--mask", "causal", *sizes, "--out", tmp_path)["mask"]["name"] == "causal"
    assert {"report.html", "collapse.svg", "layers.parquet"} <= {path.name for path in tmp_path.iterdir()}
