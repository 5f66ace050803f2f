"""The table of architectures covers the library, and what it says can be measured again."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from rankfall.cli.main import app
from rankfall.models.coverage import (
    check_architecture,
    committed_table,
    coverage_table,
    installed_architectures,
    known_type,
)


def test_reach_is_read_from_the_source() -> None:
    reach = installed_architectures()
    assert len(reach) > 400
    assert reach["llama"] == reach["bert"] == reach["vit"] == "interface"
    assert reach["bloom"] == reach["gptj"] == "bypasses"
    assert reach["mamba"] == "no attention of its own"


def test_committed_table_meets_its_target() -> None:
    outcomes = [row["outcome"] for row in committed_table().values()]
    assert outcomes.count("exact") >= 240
    assert outcomes.count("differs") == 0


def test_every_installed_architecture_is_listed() -> None:
    rows = coverage_table()
    assert {row["model_type"] for row in rows} == set(installed_architectures())


@pytest.mark.parametrize(
    ("model_type", "outcome"),
    [("gemma3_text", "exact"), ("whisper", "exact"), ("clip", "exact"), ("gptj", "exact, weights only")],
)
def test_measuring_again_gives_the_same(model_type: str, outcome: str) -> None:
    checked = check_architecture(model_type)
    assert checked.outcome == outcome == committed_table()[model_type]["outcome"]
    assert checked.calls == int(committed_table()[model_type]["calls"])


def test_command_lists_and_checks() -> None:
    runner = CliRunner()
    listed = json.loads(runner.invoke(app, ["coverage", "--json", "--outcome", "partial"]).stdout)
    assert listed["schema"] == 2
    assert all("partial" in row["outcome"] for row in listed["architectures"])
    checked = runner.invoke(app, ["coverage", "bert", "bloom", "--json"])
    assert checked.exit_code == 1
    outcomes = [row["outcome"] for row in json.loads(checked.stdout)["architectures"]]
    assert outcomes == ["exact", "exact, weights only"]


def test_unknown_types_are_refused() -> None:
    with pytest.raises(
        ValueError, match="required a model type of the installed library; got bertt; near it are bert"
    ):
        known_type("bertt")
