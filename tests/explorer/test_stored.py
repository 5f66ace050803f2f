"""The third tab: finds what audits and sweeps left, and is not thrown by what is not theirs."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from rankfall.drawing.plots import element
from rankfall.explorer.stored import (
    REPORTS,
    STORE,
    draw_audits,
    draw_runs,
    places,
    runs_table,
    settled,
    stored_audits,
    stored_runs,
)
from rankfall.store.results import import_results
from rankfall.store.store import Store
from tests.explorer.calls import series_of

RESULTS = Path(__file__).parents[2] / "results" / "amsel-fig1"


def write_audit(folder: Path, ranks: list[float]) -> None:
    """The files of `rankfall audit --out` that the page reads."""
    rows = [
        {"run": "model", "layer": layer, "part": part, "view": view, "sinks": sinks}
        | {"effective_rank": rank, "energy_rank": rank / 2}
        for layer, rank in enumerate(ranks)
        for part in ("boundary", "after_attention")
        for view in ("raw", "unit")
        for sinks in ("with", "without")
    ]
    folder.mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(folder / "depth.parquet")
    (folder / "report.html").write_text("<p>a report</p>")


def test_audits_are_found_and_drawn(tmp_path) -> None:
    write_audit(tmp_path / "small", [9.0, 4.0, 2.0])
    write_audit(tmp_path / "more" / "<b>large", [8.0, 7.0])
    write_audit(tmp_path / ".hidden" / "one", [1.0])
    audits, problems = stored_audits(tmp_path)
    assert [audit.name for audit in audits] == ["small", "more/<b>large"]
    assert problems == []
    figure = draw_audits(audits, "effective_rank", "unit")
    assert [series["y"] for series in series_of(figure)] == [[9.0, 4.0, 2.0], [8.0, 7.0]]
    assert series_of(figure)[1]["name"] == "more/<b>large"
    assert "<b>" not in element(figure)
    assert series_of(draw_audits(audits, "mu", "unit")) == []


def test_a_broken_audit_is_said_and_another_report_is_passed_by(tmp_path) -> None:
    for name, content in (("broken", b"no parquet"), ("other", None)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.html").write_text("x")
        if content is None:
            pd.DataFrame({"a": [1]}).to_parquet(tmp_path / name / "depth.parquet")
        else:
            (tmp_path / name / "depth.parquet").write_bytes(content)
    audits, problems = stored_audits(tmp_path)
    assert audits == []
    assert len(problems) == 1
    assert problems[0].startswith(f"{tmp_path / 'broken'}: ")
    assert stored_audits(tmp_path / "nowhere") == ([], [])


def test_runs_of_a_store(tmp_path) -> None:
    store = Store(tmp_path / "runs", create=True)
    import_results(store, RESULTS)
    found = stored_runs(tmp_path / "runs")
    assert found.problem is None
    assert len(found.rows) > 10
    table = runs_table(found.rows)
    varying = {
        name for name in ("layers", "heads", "rank", "multiplier") if len({row[name] for row in found.rows}) > 1
    }
    assert {"rank", "multiplier", "layers"} <= varying
    assert varying <= set(list(table[0])[: len(varying) + 2])
    assert "dim 64" in settled(found.rows)
    figure = draw_runs(found.rows, "mse_best")
    assert sum(len(series["x"]) for series in series_of(figure)) == len(found.rows)
    names = [series["name"] for series in series_of(figure)]
    assert {f"layers 1, multiplier 1, {data} data" for data in ("published", "fresh")} <= set(names)
    assert len(set(names)) == len(names)


def test_no_store_is_said(tmp_path) -> None:
    assert stored_runs(tmp_path / "none").problem == f"there is no store at {tmp_path / 'none'}"
    (tmp_path / "empty").mkdir()
    assert stored_runs(tmp_path / "empty").rows == []


def test_places_come_from_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    assert places() == (Path("runs"), Path("."))
    monkeypatch.setenv(STORE, "/a")
    monkeypatch.setenv(REPORTS, "/b")
    assert places() == (Path("/a"), Path("/b"))
