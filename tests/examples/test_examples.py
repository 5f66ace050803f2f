"""Every example runs to its end, and shows what its words say."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("marimo", reason="the extra app is not installed")

from tests.drawing.read import curves, panels_of, same

FOLDER = Path(__file__).parents[2] / "examples"


def values_of(name: str) -> dict[str, Any]:
    """What the notebook's cells define, run as `python examples/NAME.py` runs them."""
    app = runpy.run_path(str(FOLDER / f"{name}.py"), run_name="example")["app"]
    _, defined = app.run()
    return dict(defined)


def test_every_example_is_tested_here() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {"researcher", "engineer", "training"}


def test_researcher() -> None:
    found = values_of("researcher")
    rows = {row["mask"]: row for row in found["collapse"]}
    assert (rows["powers-of-two"]["radius"], rows["causal"]["radius"], rows["window:4"]["radius"]) == (5, 1, 4)
    for row in rows.values():
        assert row["measured factor a layer"] == pytest.approx(row["tail by linear theory"], rel=1e-3)
        assert row["measured factor a layer"] < row["theorem's bound"] < 1
    drawn = curves(panels_of(found["picture"])[0])
    for report in found["reports"]:
        records = report.records
        layers = [row["layer"] for row in records]
        assert same(drawn[str(report.mask)], layers, [row["log10_mu"] for row in records])
    heads = curves(panels_of(found["heads_picture"])[0])
    assert len(heads) == 3
    for name, (counts, errors) in heads.items():
        assert same((counts, errors), [16, 64, 256], [row[name] for row in found["head_rank"]])
    for row in found["head_rank"]:
        assert row["floor of any weights"] < row["random heads, fitted"]
        # The prediction is asymptotic in the width, which is 16 here.
        assert row["random heads, fitted"] == pytest.approx(row["random heads, predicted"], rel=0.05)


def test_engineer() -> None:
    found = values_of("engineer")
    usual = found["head_choices"][0]
    assert (usual["heads"], usual["rank"]) == (12, 64)
    drawn_columns = (("text_excess", 100), ("trained_error", 1), ("mse_lower_bound_with_skip", 1))
    for panel, (column, unit) in zip(panels_of(found["picture"]), drawn_columns, strict=True):
        rows = [row for row in found["rows"] if "parameters" in row["equal"] and row[column] is not None]
        known = {row["rank"]: unit * row[column] for row in rows}
        (ranks, drawn), *_ = curves(panel).values()
        assert drawn == pytest.approx([known[rank] for rank in ranks], rel=1e-6)
    fewest = min(found["head_choices"], key=lambda row: row["heads"])
    assert (fewest["rank"], fewest["bound with skip"]) == (768, 0.0)
    assert (found["advice"]["heads"], found["advice"]["rank"]) == (12, 64)
    assert len(panels_of(found["bare"])) >= 1
    assert len(found["audited"].heads) == 12
    assert len(panels_of(found["audit_picture"])) >= 1
    assert list(found["counts"].values()) == sorted(found["counts"].values(), reverse=True)
    ends = {row["between layers"]: row for row in found["survivors"]}
    assert ends["attention alone"]["complete"] == 1.0
    assert ends["residual, norm before"]["window:4"] > ends["attention alone"]["window:4"]


def test_training() -> None:
    found = values_of("training")
    last = found["last"]
    assert min(row[last] for row in found["usual_log"]) > 5
    assert max(row[last] for row in found["bare_log"]) < 1.01
    drawn = curves(panels_of(found["picture"])[0])
    for name, log in (("usual", found["usual_log"]), ("without residual and norm", found["bare_log"])):
        assert same(drawn[name], [row["step"] for row in log], [row[last] for row in log])
    assert found["usual_warnings"] == []
    assert any("collapse at blocks.5" in line for line in found["bare_warnings"])
