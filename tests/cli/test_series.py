"""`rankfall audit` of several models: what it prints, its exit status, what it refuses."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.calls import call, refused
from tests.models.small import some_text
from tests.models.trained import save_checkpoints


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("home")
    save_checkpoints(base / "runs", (0, 3, 10), layers=2)
    (base / "text.txt").write_text(some_text(60))
    (base / "bad").mkdir()
    shutil.copy(base / "runs" / "checkpoint-0" / "config.json", base / "bad")
    return base


def audited(capsys: pytest.CaptureFixture[str], *words: str, tokens: int = 12) -> tuple[int, str, str]:
    return call(capsys, "audit", *words, "--text", "text.txt", "--tokens", str(tokens))


def test_a_pattern_is_a_series(home: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    status, out, err = audited(capsys, "runs/checkpoint-*", "--json", "--out", "report")
    assert status == 0, err
    record = json.loads(out)
    assert [row["step"] for row in record["checkpoints"]] == [0, 3, 10]
    assert len(record["depth"]) == 9
    assert len(record["differences"]) == 3
    assert len(record["head_differences"]) == 8
    assert record["verdict"]["headline"].startswith("from checkpoint-0 to checkpoint-10 the effective rank")
    assert (record["store"], record["complete"], record["not_audited"]) == ("audits", True, {})
    assert {"report.html", "maps.png", "other_maps.svg", "checkpoints.csv", "depth.parquet"} <= {
        path.name for path in Path("report").iterdir()
    }
    status, out, _ = audited(capsys, "runs/checkpoint-0", "runs/checkpoint-10", "runs/checkpoint-3")
    assert status == 0
    assert "0 audited now, 3 found in audits" in out
    assert "last over highest: energy rank at the last layer over the highest" in " ".join(out.split())
    assert not {"kept_share", "kept"} & {word for row in record["checkpoints"] for word in (*row, *row.values())}
    assert record["verdict"]["reasons"][0]["topic"] == "last layer"
    assert out.index("\n    0 ") < out.index("\n    3 ") < out.index("\n   10 ")


def test_controls_and_ablations_only_where_asked_for(home: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    seen = []
    monkeypatch.setattr("rankfall.api.series.series", lambda names, text, **options: seen.append(options) or 1 / 0)
    for words in ([], ["--controls"], ["--no-controls", "--ablate"]):
        call(capsys, "audit", "runs/checkpoint-*", *words)
    assert [(one["controls"], one["ablate"]) for one in seen] == [(False, False), (True, False), (False, True)]


def test_a_bad_checkpoint_and_a_condition_give_status_1(home: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    status, out, _ = audited(capsys, "runs/checkpoint-0", "bad", "--json")
    record = json.loads(out)
    assert status == 1
    assert "weights" in record["not_audited"]["bad"]
    assert record["failed"] == []
    failing = ("runs/checkpoint-{0,3}", "--fail-if", "effective_rank > 0 at last")
    status, out, _ = audited(capsys, *failing, tokens=16)
    assert status == 1
    assert "FAILED effective_rank > 0 at last at checkpoint-0: layer 2" in " ".join(out.split())
    assert "OPEN" not in out
    with monkeypatch.context() as patched:
        patched.setattr("rankfall.models.condition.AnswerCondition.held_in", lambda *_: [])
        patched.setattr("rankfall.models.condition.AnswerCondition.open_in", lambda *_: "they disagree")
        asked = (failing[0], "--fail-if", "distinctions lost")
        status, out, _ = audited(capsys, *asked, tokens=16)
        assert status == 0
        assert "OPEN distinctions lost at checkpoint-3: they disagree" in " ".join(out.split())
        told = json.loads(audited(capsys, *asked, "--json", tokens=16)[1])["open"]
        assert told[0] == {"model": "checkpoint-0", "condition": "distinctions lost", "reason": "they disagree"}
    status, out, _ = audited(capsys, *failing)
    assert status == 3
    assert "NOT CHECKED effective_rank > 0 at last at checkpoint-3: too little text" in " ".join(out.split())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["none/checkpoint-*"], "required folders or GGUF files that match none/checkpoint-*; got nothing"),
        (["runs/checkpoint-0", "runs/checkpoint-0/"], "required each model once; got runs/checkpoint-0 twice"),
        (["runs/checkpoint-0", "--store", "x"], "required several models, or a pattern"),
        (["runs/checkpoint-0", "--engine", "local"], "with --engine; got one model"),
        (["runs/checkpoint-*", "--engine", "slurm"], "required an engine among local, ray"),
        (["runs/checkpoint-*", "--store", "runs"], "required a store of audits at"),
        (["runs/checkpoint-*", "--out", "text.txt"], "a place to write --out; got text.txt: a file"),
        (["bad", "no/where"], "required at least one model that can be audited; got 2 that cannot"),
        (["runs/checkpoint-{0,3}", "--fail-if", "nonsense"], "required a condition"),
        (["runs/checkpoint-{0,3}", "--fail-if", "distinctions reduced"], "add --controls"),
    ],
)
def test_wrong_requests_are_one_line(words: list[str], message: str, home: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    status, out, err = audited(capsys, *words)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_weights_alone_are_those_of_one_model(home: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(home)
    said = refused(capsys, "audit", "runs/checkpoint-*", "--weights-only")
    assert "required one model with --weights-only" in said
