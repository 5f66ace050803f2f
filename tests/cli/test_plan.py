"""`rankfall plan`: the JSON contract, the table, the picture, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from rankfall.cli.main import run
from rankfall.store.store import Store
from rankfall.theory.head_bounds import HeadClass, mse_floor
from rankfall.training.cell import Cell

CONTRACT = {"heads", "rank", "parameters", "flops", "kv_cache_bytes", "mse_lower_bound", "step_seconds"}


def call(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as stopped:
        run(["plan", *arguments])
    captured = capsys.readouterr()
    return int(stopped.value.code or 0), captured.out, captured.err


def planned(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    status, out, _ = call(capsys, *arguments, "--json")
    assert status == 0
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def test_the_issue_example_without_time(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--dim", "768", "--layers", "12", "--context", "1024", "--no-time")
    rows = found["candidates"]
    assert found["schema"] == 2
    assert all(set(row) >= CONTRACT for row in rows)
    assert (rows[0]["heads"], rows[0]["rank"], rows[0]["equal"]) == (12, 64, ["reference", "parameters", "flops"])
    assert {row["rank"] for row in rows} == {12, 24, 48, 64, 96, 128, 192, 384, 768}
    assert {row["parameters"] for row in rows} == {12 * (4 * 768**2 + 8 * 768**2)}
    assert all(row["step_seconds"] is None for row in rows)
    assert found["implications"].count(". ") == 1
    for row in rows:
        assert row["mse_lower_bound"] == mse_floor(HeadClass(768, row["rank"]), row["heads"]).mse
        assert row["mse_lower_bound_with_skip"] <= row["mse_lower_bound"]


def test_times_are_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    picture = tmp_path / "plan.svg"
    found = planned(
        capsys,
        "--dim",
        "32",
        "--layers",
        "3",
        "--context",
        "16",
        "--seconds",
        "0.2",
        "--heads",
        "4",
        "--plot",
        str(picture),
    )
    assert all(row["step_seconds"] > 0 and row["steps_timed"] >= 1 for row in found["candidates"])
    assert "<svg" in picture.read_text(encoding="utf-8")


def test_shared_key_value_heads_split_the_two_families(capsys: pytest.CaptureFixture[str]) -> None:
    found = planned(capsys, "--dim", "768", "--kv-heads", "4", "--no-time")
    rows = found["candidates"]
    assert {row["kv_heads"] for row in rows} == {4}
    assert ["flops"] in [row["equal"] for row in rows]
    assert ["parameters"] in [row["equal"] for row in rows]
    assert found["left_out_ranks"] == [192, 384, 768]
    grouped = planned(capsys, "--dim", "768", "--group", "3", "--no-time")["candidates"]
    assert all(row["heads"] == 3 * row["kv_heads"] for row in grouped)


def test_trained_runs_add_their_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Two seeds of rank 16 and one of rank 64 that diverged; runs of another task and of more heads do not count."""
    store = Store(tmp_path / "runs")
    trained = [
        (Cell(rank=16), "done", 0.70),
        (Cell(rank=16, seed=1), "done", 0.72),
        (Cell(rank=16, multiplier=8), "done", 0.10),
        (Cell(rank=16, task="nearest"), "done", 0.20),
        (Cell(rank=64), "diverged", 9.0),
    ]
    for cell, status, error in trained:
        summary = {"status": status, **asdict(cell), "mse_fresh": error}
        store.write(cell, summary=summary, environment={"date": "2026-01-02"})
    asked = ("--dim", "64", "--layers", "1", "--heads", "4", "--no-time", "--store", str(store.path))
    rows = {row["rank"]: row for row in planned(capsys, *asked)["candidates"]}
    assert rows[16]["mse_measured"] == pytest.approx(0.71)
    assert rows[16]["runs_measured"] == 2
    assert rows[64]["mse_measured"] is None
    status, out, _ = call(capsys, *asked)
    assert status == 0
    assert "0.7100" in out


def test_table_and_two_sentences(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capsys, "--dim", "64", "--no-time", "--heads", "4")
    text = " ".join(out.split())
    assert status == 0
    assert "usual" in text
    assert "It says nothing about depth" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dim", "0"], "dim to be a whole number of at least 2"),
        (["--dim", "64", "--heads", "0"], "heads to be a whole number of at least 1"),
        (["--dim", "64", "--heads", "5"], "reference heads that divide the width"),
        (["--dim", "64", "--heads", "4", "--kv-heads", "3"], "reference heads in multiples of 3"),
        (["--dim", "64", "--kv-heads", "2", "--group", "2"], "either key/value heads or a group size"),
        (["--dim", "64", "--rank", "65", "--no-time"], "rank to be at most 64; got 65"),
        (["--dim", "64", "--seconds", "0"], "required seconds to be positive"),
        (["--dim", "64", "--layers", "0"], "layers to be a whole number of at least 1"),
        (["--dim", "7", "--group", "2"], "a width that has a divisor"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    status, out, err = call(capsys, *arguments)
    assert (status, out) == (2, "")
    assert message in err
