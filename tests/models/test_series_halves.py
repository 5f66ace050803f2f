"""A series of models of two halves shows both: tables, verdict, pictures, text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.calls import call
from tests.models.small import save_small, some_text

from rankfall.api.compare import ComparisonResult, compare
from rankfall.api.series import SeriesResult, series


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("halves")
    for step in (1, 2):
        save_small(base / f"t5-{step}", "t5", seed=step)
    save_small(base / "bert", "bert")
    (base / "text.txt").write_text(some_text(90))
    return base


@pytest.fixture(scope="module")
def both(home: Path) -> SeriesResult:
    return series([home / "t5-1", home / "t5-2"], home / "text.txt", tokens=20, store=home / "audits")


@pytest.fixture(scope="module")
def mixed(home: Path) -> ComparisonResult:
    return compare(home / "t5-1", home / "bert", home / "text.txt", tokens=20, store=home / "audits")


def test_every_table_has_both_halves(both: SeriesResult) -> None:
    tables = both.tables()
    for name in ("checkpoints", "depth", "differences", "heads", "head_differences"):
        assert list(tables[name]["stack"].drop_duplicates()) == ["encoder", "decoder"], name
    assert len(tables["checkpoints"]) == 4
    assert len(tables["depth"]) == 16
    for one in both.models:
        assert one.record is not None
        (decoder,) = one.record["other_stacks"]
        depth = tables["depth"].query(f"model == '{one.label}' and stack == 'decoder'")
        assert list(depth["effective_rank"]) == [row["unit"]["effective_rank"] for row in decoder["depth"]]
    heads = tables["heads"].query("model == 't5-1'")
    counted = heads.groupby(["stack", "kind"]).size().to_dict()
    assert counted == {("encoder", "self"): 3, ("decoder", "self"): 3, ("decoder", "cross"): 3}
    assert len(tables["head_differences"]) == 36


def test_the_verdict_speaks_of_both(both: SeriesResult) -> None:
    verdict = both.verdict
    assert verdict.headline.startswith("encoder: from t5-1 to t5-2 the effective rank at the last layer")
    assert ". decoder: from t5-1 to t5-2 the effective rank" in verdict.headline
    for topic in ("last layer", "all layers", "layers", "heads", "verdicts"):
        assert [one.numbers["stack"] for one in verdict.reasons if one.topic == topic] == ["encoder", "decoder"]


def test_the_report_has_a_picture_of_each(both: SeriesResult) -> None:
    document = both._document("")
    titles = {one.name: one.title for one in document.pictures()}
    assert titles["maps"] == "Layers by checkpoints: encoder"
    assert titles["maps_2"] == "Layers by checkpoints: decoder"
    assert len(titles) == 4


def test_the_text_has_a_row_for_each_half_and_counts_models(
    both: SeriesResult, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(home)
    words = ("--text", "text.txt", "--tokens", "20")
    status, out, err = call(capsys, "audit", "t5-*", *words)
    assert status == 0, err
    assert "2 models: tokens of length one" in out
    assert "0 audited now, 2 found in audits" in out
    assert out.count(" encoder ") == out.count(" decoder ") == 2
    status, out, err = call(capsys, "compare", "t5-1", "t5-2", *words, "--stack", "decoder", "--json")
    assert status == 0, err
    record = json.loads(out)
    assert len(record["depth"]) == 8
    assert "stack" not in record["depth"][0]
    assert record["depth"][3]["effective_rank"] == pytest.approx(
        both.tables()["depth"].query("model == 't5-1' and stack == 'decoder'")["effective_rank"].iloc[-1]
    )


def test_a_model_without_the_other_half_is_compared_in_the_first(mixed: ComparisonResult) -> None:
    depth = mixed.tables()["depth"]
    assert {tuple(pair) for pair in depth[["model", "stack"]].drop_duplicates().to_numpy()} == {
        ("t5-1", "encoder"),
        ("bert", "encoder"),
        ("t5-1", "decoder"),
    }
    assert set(mixed.tables()["differences"]["stack"]) == {"encoder"}
    assert mixed.verdict.headline.endswith("decoder: only t5-1 has it, so there is nothing to compare")
    questions = [one.question for one in mixed._document("").answers]
    assert questions.count("encoder: Which keeps more distinctions between tokens?") == 1
    lines = {line.get_label() for line in mixed._figure().axes[0].get_lines()}
    assert lines == {"t5-1, encoder", "bert, encoder", "t5-1, decoder"}


def test_stacks_are_paired_by_name_whichever_comes_first(home: Path) -> None:
    """The longer stack comes first in an audit: the encoder of one model, the decoder of the other."""
    save_small(home / "deep", "t5", num_layers=3, num_decoder_layers=4)
    found = compare(home / "t5-1", home / "deep", home / "text.txt", tokens=20, store=home / "audits")
    assert found.first.record is not None
    assert found.second.record is not None
    assert (found.first.record["stack_label"], found.second.record["stack_label"]) == ("encoder", "decoder")
    depth = found.tables()["depth"]
    pairs = [tuple(pair) for pair in depth[["stack", "model"]].drop_duplicates().to_numpy()]
    assert pairs == [("encoder", "t5-1"), ("encoder", "deep"), ("decoder", "t5-1"), ("decoder", "deep")]
    decoder = depth.query("model == 'deep' and stack == 'decoder'")["effective_rank"]
    assert list(decoder) == [row["unit"]["effective_rank"] for row in found.second.record["depth"]]
    assert "only" not in found.verdict.headline
    assert [line.partition(":")[0] for line in found.kept] == ["encoder", "decoder"]


def test_a_model_beside_itself_has_no_winner_and_no_changes(home: Path) -> None:
    found = compare(home / "t5-1", home / "t5-1", home / "text.txt", tokens=20, store=home / "audits")
    assert len(found.kept) == 2
    assert all("as many in both" in line for line in found.kept)
    assert [headline.partition(": ")[0] for headline in found.verdicts.values()] == list(found.labels)
    said = " ".join(found.changes)
    assert "0 of 3 layers gain and 0 lose" in said
    assert "none changes at all" in said
    assert "in none at all" in said
