"""What `rankfall audit --head-cut` prints and writes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tests.calls import refused
from tests.models.small import save_small, some_text
from typer.testing import CliRunner

from rankfall.cli.main import app


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_small(tmp_path_factory.mktemp("audited") / "model", num_hidden_layers=2)
    (folder / "text.txt").write_text(some_text(30))
    return folder


BRIEF = ["--tokens", "12", "--passages", "2", "--no-ablate", "--draws", "1"]


def test_cut_heads_and_spectra(model: Path, tmp_path: Path) -> None:
    spectra = tmp_path / "spectra.npz"
    asked = ["audit", str(model), "--text", str(model / "text.txt"), *BRIEF]
    more = ["--head-cut", "--head-divergence", "1e-6", "--head-spectra", str(spectra), "--json"]
    done = CliRunner().invoke(app, [*asked, *more])
    assert done.exit_code == 0, done.output
    record = json.loads(done.stdout)
    assert record["missing"] == {}
    assert {one["limit"] for one in record["head_needs"]} == {1e-6}
    assert record["head_cut"]["head_dim"] == 8
    assert len(record["head_cut"]["points"]) == 4 + 2 * 2
    assert np.load(spectra)["singular_values"].shape == (8, 8)
    # Where lines break depends on whoever made the console first.
    shown = " ".join(CliRunner().invoke(app, [*asked, "--no-controls", "--head-needs"]).stdout.split())
    assert "head need: on this text the median head reproduces its attention within 0.01 nats a row" in shown
    assert "head cut:" not in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--head-spectra", "s.npz"], "required one model with --head-needs or --head-cut"),
        (["--head-needs", "--head-spectra", "s.txt"], "required the file of spectra to end in one of .npz"),
        (["--head-needs", "--head-divergence", "0"], "required head_divergence to be a finite number above 0"),
        (["--weights-only", "--head-cut"], "--weights-only without options that only a run has; got --head-cut"),
    ],
)
def test_refusals(model: Path, options: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said in refused(capsys, "audit", model, *options)
