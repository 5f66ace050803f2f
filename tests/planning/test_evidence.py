"""Evidence beside the bound: trained cells met exactly, interpolated between, flagged outside; one rule decides."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from rankfall.catalogue import EVIDENCE
from rankfall.planning.by_matches import EQUAL_ERRORS, choose
from rankfall.planning.decision import recommend
from rankfall.planning.evidence import FARTHEST, Estimate, settings_of
from rankfall.planning.recommendation import separated, separation
from rankfall.store.results import committed_summaries

ROOT = Path(__file__).parents[2]


def test_at_a_trained_cell_its_own_error_stands() -> None:
    rows = [row for row in committed_summaries().values() if row.get("layers") == 1 and row.get("dim") == 64]
    # cells trained by another recipe are no cells of this protocol
    cells = [row for row in rows if row["recipe"] == FARTHEST.protocol.recipe]
    assert len(cells) >= 20
    for row in cells:
        found = FARTHEST.estimate(row["heads"], row["rank"], 64)
        assert found is not None
        assert found.value == pytest.approx(row["mse_fresh"], abs=1e-12)
        assert found.low < found.value < found.high
        assert found.outside == ()


def test_between_cells_it_lies_within_its_range_and_rank_helps() -> None:
    errors = []
    for rank in range(4, 65):
        found = FARTHEST.at(rank / 64, 5.0, 64)
        assert found.low <= found.value <= found.high
        errors.append(found.value)
    assert errors == sorted(errors, reverse=True)
    middle = FARTHEST.at(0.75, 1.0)
    assert middle.low < 0.03
    assert middle.high > 0.7, "between half and full rank nothing was trained: the range must say so"


def test_what_lies_outside_is_said() -> None:
    far = FARTHEST.estimate(512, 8, 4096)
    assert far is not None
    assert [line.split()[0] for line in far.outside] == ["trained", "r/k"]
    many = FARTHEST.at(1.0, 100.0, 64)
    assert many.outside == ("m is outside of what was trained, 1 to 64, whose end stands for it",)
    assert FARTHEST.estimate(8, 64, 32) == FARTHEST.estimate(8, 32, 32), "no more directions than there are"


def test_seeds_widen_the_range_and_fresh_training_goes_before() -> None:
    row: dict[str, Any] = {"status": "done", "dim": 8, "rank": 4, "multiplier": 1, "mse_fresh_error": 1e-3}
    rows = [{**row, "data": "published", "mse_fresh": 0.9}]
    (one,) = settings_of(rows)
    assert (one.error, one.margin, one.seeds) == (0.9, 0.002, 1)
    rows += [{**row, "data": "fresh", "mse_fresh": error} for error in (0.5, 0.7)]
    rows += [{**row, "data": "fresh", "mse_fresh": 9.0, "status": "diverged"}]
    (one,) = settings_of(rows)
    assert (one.error, one.margin, one.seeds) == (pytest.approx(0.6), pytest.approx(0.1), 2)


def test_without_results_a_source_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankfall.planning.evidence._settings", lambda protocol: ())
    assert FARTHEST.about == "No trained cells of this protocol are installed here."
    assert FARTHEST.estimate(8, 8, 64) is None


def test_every_source_says_what_it_is_about() -> None:
    for source in EVIDENCE:
        if source.estimate(2, 64, 64, 128) is None:
            assert "installed here" in source.about
            continue
        assert source.name.endswith("error" if source.by_directions else "excess")
        assert "fresh data" in source.about
        assert "interpolat" in source.about or "linear in" in source.about
    typical, worst = FARTHEST.left_out_errors()
    assert f"{typical:.2g} (median)" in FARTHEST.about
    assert typical < 0.02 < worst < 0.2


def candidate(heads: int, rank: int, cache: float = 1.0) -> dict[str, Any]:
    return {"heads": heads, "rank": rank, "kv_cache_bytes": cache, "flops": 1.0}


def test_the_criterion() -> None:
    """Lowest error, ties within 0.05 to most heads, no larger cache."""
    rows = [candidate(8, 32), candidate(16, 16), candidate(4, 64), candidate(2, 128, cache=2.0)]
    errors = {32: 0.5, 16: 0.5 + EQUAL_ERRORS / 2, 64: 0.1, 128: 0.0}

    def error_at(row: Any, directions: int) -> Estimate:
        return Estimate(errors[row["rank"]], 0.0, 1.0, ("said",))

    assert choose(rows, 64, error_at, 1.1)["rank"] == 64
    assert choose(rows, 64, error_at, 2.0)["rank"] == 128
    assert choose(rows[:2], 64, error_at, 1.1)["rank"] == 16
    advice = recommend(rows, 64, error_at)
    assert (advice.heads, advice.rank, advice.usual, advice.caveats) == (4, 64, False, ("said",))
    assert advice.words == "4 heads of rank 64 instead of 8 heads of rank 32"
    assert "0.1, that of the usual choice 0.5" in advice.reason
    assert any("times the usual cache" in line for line in advice.changes)
    nothing = recommend(rows, 64, lambda row, directions: None)
    assert nothing.usual
    assert nothing.decided_by == "nothing"
    assert nothing.words == "8 heads of rank 32, the usual choice, for want of evidence"
    assert nothing.reason.endswith("speaks against the usual choice; of language models: none are known")


def test_bounds_within_one_percent_do_not_separate() -> None:
    assert not separated(0.1814, 0.1817)
    assert not separated(0.0, 0.0)
    assert separated(0.17, 0.18)
    rows = [
        {"rank": rank, "mse_lower_bound_with_skip": bound, "bound_separates": separated(bound, 0.1816)}
        for rank, bound in ((128, 0.1816), (8, 0.1817), (256, 0.1814), (4096, 0.0))
    ]
    words = separation(rows)
    assert "does not separate these rows: rank 8, 128 and 256" in words
    assert "It separates rank 4096." in words


def test_an_installed_package_has_the_evidence(tmp_path: Path) -> None:
    """Laid out as the wheel lays it out, with none of the checkout on the path."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    site = tmp_path / "site"
    for package in build["packages"]:
        shutil.copytree(ROOT / package, site / Path(package).name, ignore=shutil.ignore_patterns("__pycache__"))
    for source, place in build["force-include"].items():
        shutil.copytree(ROOT / source, site / place)
    asked = "import rankfall, json; print(json.dumps(rankfall.plan(64, time=False).recommendation))"
    environment = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["error"] == pytest.approx(0.02, abs=0.01)
