"""`rankfall survey`, over every configuration of the installed transformers, run once for all tests here."""

from __future__ import annotations

import csv
import io
import json
import socket
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from tests.calls import answer, call, refused
from tests.pages import DOCS

from rankfall.cli.main import run


@pytest.fixture(scope="session")
def surveyed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One run with --json, --csv and --plot, and with the network cut."""
    folder = tmp_path_factory.mktemp("survey")
    out, err = io.StringIO(), io.StringIO()

    def refuse(*_: object) -> None:
        raise AssertionError("the survey reached for the network")

    patch = pytest.MonkeyPatch()
    patch.setattr(socket.socket, "connect", refuse)
    patch.setattr(socket, "getaddrinfo", refuse)
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stopped, patch.context():
        run(["survey", "--json", "--csv", str(folder / "all.csv"), "--plot", str(folder / "all.png")])
    patch.undo()
    assert stopped.value.code == 0
    return {"out": out.getvalue(), "folder": folder}


@pytest.fixture(scope="session")
def models(surveyed: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["model_type"]: row for row in json.loads(surveyed["out"])["models"]}


def test_standard_output_is_one_json_object(surveyed: dict[str, Any]) -> None:
    assert surveyed["out"].count("\n") == 1
    found = json.loads(surveyed["out"])
    assert found["schema"] == 2
    assert "not checkpoints" in found["caveat"]
    assert found["library"].startswith("transformers ")


def test_the_guide_has_the_counts(surveyed: dict[str, Any]) -> None:
    found = json.loads(surveyed["out"])
    guide = " ".join((DOCS / "guide" / "survey.md").read_text(encoding="utf-8").split())
    if f"With {found['library']}:" not in guide:
        pytest.skip("the guide speaks of another version of the library")
    counts = {name: str(count) for name, count in found["summary"].items()}
    for said in (
        "{configurations} configuration classes, {with_heads} with attention heads ({from_parts} read from a part)",
        "{skipped} skipped.",
        "the {with_heads} have {distinct_shapes} different shapes",
        "$Hr = d$ in {equal_to_one} classes ({distinct_equal_to_one} shapes), more in {above_one}",
        "less in {below_one};",
        "{grouped} are grouped, {latent} latent",
    ):
        assert said.format(**counts) in guide


def test_hundreds_of_architectures_are_read_and_nothing_is_dropped(surveyed: dict[str, Any]) -> None:
    found = json.loads(surveyed["out"])
    counts = found["summary"]
    assert len(found["models"]) == counts["with_heads"] > 300
    assert len(found["models"]) + len(found["skipped"]) == counts["configurations"]
    assert counts["equal_to_one"] + counts["above_one"] + counts["below_one"] == counts["with_heads"]
    assert counts["grouped"] > 50
    assert counts["latent"] >= 5
    assert all(row["reason"] for row in found["skipped"])
    assert counts["skipped"] < 0.15 * counts["configurations"]


@pytest.mark.parametrize(
    ("model_type", "expected"),
    [
        ("gpt2", (768, 12, 12, 64, 12, 1.0)),
        ("bert", (768, 12, 12, 64, 12, 1.0)),
        ("llama", (4096, 32, 32, 128, 32, 1.0)),
        ("mistral", (4096, 32, 8, 128, 32, 1.0)),
        ("falcon", (4544, 71, 1, 64, 32, 1.0)),
        ("t5", (512, 8, 8, 64, 6, 1.0)),
        ("gemma", (3072, 16, 16, 256, 28, 4 / 3)),
        ("mt5", (512, 6, 6, 64, 8, 0.75)),
        ("deepseek_v3", (7168, 128, 128, 192, 61, 24 / 7)),
        ("segformer", (256, 8, 8, 32, 8, 1.0)),
    ],
)
def test_known_defaults(models: dict[str, dict[str, Any]], model_type: str, expected: tuple[float, ...]) -> None:
    row = models[model_type]
    assert (row["width"], row["heads"], row["kv_heads"], row["head_dim"], row["layers"]) == expected[:5]
    assert row["heads_times_rank_over_width"] == pytest.approx(expected[5])
    assert row["rank_over_width"] == pytest.approx(row["head_dim"] / row["width"])


def test_recurrent_heads_are_not_attention(surveyed: dict[str, Any]) -> None:
    reasons = {row["model_type"]: row["reason"] for row in json.loads(surveyed["out"])["skipped"]}
    assert "recurrence" in reasons["mamba2"]
    assert reasons["resnet"] == "names no attention heads"


def test_every_number_is_a_whole_one_above_zero(models: dict[str, dict[str, Any]]) -> None:
    for row in models.values():
        assert all(
            isinstance(row[name], int) and row[name] > 0 for name in ("width", "heads", "kv_heads", "head_dim")
        )
        assert row["heads"] % row["kv_heads"] == 0


def test_csv_has_the_same_rows(surveyed: dict[str, Any], models: dict[str, dict[str, Any]]) -> None:
    path: Path = surveyed["folder"] / "all.csv"
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["model_type"]: int(row["width"]) for row in rows} == {n: row["width"] for n, row in models.items()}


def test_picture_is_drawn(surveyed: dict[str, Any]) -> None:
    picture = (surveyed["folder"] / "all.png").read_bytes()
    assert picture.startswith(b"\x89PNG")
    assert len(picture) > 20_000


def test_some_model_types_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = call(capsys, "survey", "gpt2", "gemma", "resnet")
    assert status == 0
    assert "gpt2" in printed
    assert "1.333" in printed
    assert "skipped 1, names no attention heads: resnet" in printed
    assert "not checkpoints" in " ".join(printed.split())


def test_types_without_heads_are_one_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    status, printed, _ = call(capsys, "survey", "resnet", "mamba2")
    assert status == 0
    assert printed.splitlines() == [
        "resnet: nothing to survey, names no attention heads",
        "mamba2: nothing to survey, its heads belong to a recurrence, not to attention",
    ]
    found = answer(capsys, "survey", "resnet")
    assert (found["models"], found["summary"]["with_heads"]) == ([], 0)
    assert [one["model_type"] for one in found["skipped"]] == ["resnet"]


def test_nothing_to_draw_is_refused(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, said = call(capsys, "survey", "resnet", "--plot", tmp_path / "none.png")
    assert status == 2
    assert "at least one model type with attention heads for a picture" in said


def test_unknown_model_type_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = refused(capsys, "survey", "gpt2", "no-such-model")
    assert "required model types that the installed transformers knows; got no-such-model" in said
