"""What the options of `rankfall audit` select, and what its help lists."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.models.small import save_small, some_text
from typer.testing import CliRunner

from rankfall.catalogue import NAMED_MODELS
from rankfall.cli.main import app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_small(tmp_path_factory.mktemp("audited") / "model", num_hidden_layers=7)
    (folder / "text.txt").write_text(some_text(30))
    return folder


@pytest.mark.parametrize(
    ("asked", "measured"),
    [("1-5", [0, 1, 2, 3, 4, 5, 7]), ("4", [0, 4, 7]), ("6,2-3", [0, 2, 3, 6, 7]), ("2-2", [0, 2, 7])],
)
def test_both_ends_of_a_range_of_layers_are_measured(model: Path, asked: str, measured: list[int]) -> None:
    options = ["--text", str(model / "text.txt"), "--tokens", "16", "--no-heads", "--no-controls", "--no-ablate"]
    done = CliRunner().invoke(app, ["audit", str(model), *options, "--layers", asked, "--json"])
    assert done.exit_code == 0, done.output
    assert [row["layer"] for row in json.loads(done.stdout)["depth"]] == measured


def test_help_lists_the_named_models() -> None:
    shown = CliRunner().invoke(app, ["audit", "--help"], env={"COLUMNS": "400"}).stdout
    for one in NAMED_MODELS:
        assert one.name in shown
        assert one.meaning in " ".join(shown.replace("│", " ").split())
