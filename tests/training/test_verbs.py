"""`rankfall sweep` and `rankfall runs` as a user meets them."""

from __future__ import annotations

import csv
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.calls import call
from tests.training.conftest import GRID

from rankfall.cli.main import run
from rankfall.store.store import Store
from rankfall.training.stack import Stack


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    (folder / "grid.toml").write_text(GRID)
    return folder


@pytest.fixture(scope="module")
def swept(home: Path) -> Path:
    with pytest.raises(SystemExit) as ended:
        run(["sweep", str(home / "grid.toml"), "--store", str(home / "runs"), "--threads", "1"])
    assert not ended.value.code
    return home


def test_a_dry_run_plans_and_writes_nothing(home: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ("sweep", home / "grid.toml", "--store", home / "planned", "--dry-run", "--max-stack", 2, "--json")
    status, out, _ = call(capfd, *arguments)
    plan = json.loads(out)
    assert (status, plan["schema"], plan["cells"], plan["finished"]) == (0, 2, 3, 0)
    assert sorted(stack["cells"] for stack in plan["stacks"]) == [1, 2]
    assert plan["seconds_estimated"] > 0
    assert all(stack["flops"] > 0 and stack["memory_gib"] > 0 for stack in plan["stacks"])
    assert plan["estimate_from"] == "a trial of a few steps"
    assert {row["status"] for row in plan["runs"]} == {"missing"}
    assert not (home / "planned").exists()


def test_minutes_end_a_sweep_in_good_order(
    home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter(range(0, 6000, 60))
    monkeypatch.setattr("rankfall.training.sweep.monotonic", lambda: float(next(readings)))
    command = ("sweep", home / "grid.toml", "--store", home / "timed", "--where", "rank=1,2", "--threads", 1)
    status, out, err = call(capfd, *command, "--max-stack", 1, "--minutes", 2.5, "--json")
    result = json.loads(out)
    assert (status, result["complete"], result["trained"]) == (0, False, 1)
    assert [row["status"] for row in result["runs"]] == ["done", "missing"]
    assert f"goes on: rankfall sweep {home}/grid.toml --store {home}/timed --where rank=1,2" in " ".join(err.split())
    assert call(capfd, "sweep", "smoke", "--minutes", 0)[0] == 2


def test_a_second_dry_run_knows_what_the_first_sweep_took(swept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (swept / "more.toml").write_text(GRID.replace("100", "500"))
    _, out, _ = call(capfd, "sweep", swept / "more.toml", "--store", swept / "runs", "--dry-run", "--json")
    assert json.loads(out)["estimate_from"] == "runs in this store"


def test_sweep_prints_one_object_with_a_row_per_cell(swept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capfd, "sweep", swept / "grid.toml", "--store", swept / "runs", "--json")
    result = json.loads(out)
    assert (status, result["schema"], result["trained"]) == (0, 2, 0)
    for row, rank in zip(result["runs"], (1, 2, 4), strict=True):
        assert (row["status"], row["rank"], row["steps"]) == ("done", rank, 100)
        assert 0 < row["mse_best"] < 4
        assert {"id", "mse_final", "seconds", "learning_rate"} <= set(row)


def test_a_sweep_and_its_runs_are_drawn_and_reported(swept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = [swept / name for name in ("sweep.svg", "runs.svg", "report/report.html")]
    kept = ("--store", swept / "runs")
    status, out, err = call(
        capfd, "sweep", swept / "grid.toml", *kept, "--plot", files[0], "--out", files[2].parent, "--json"
    )
    assert (status, json.loads(out)["trained"]) == (0, 0)
    assert call(capfd, "runs", *kept, "--plot", files[1])[0] == 0
    assert all("<svg" in file.read_text(encoding="utf-8") for file in files[:2])
    assert "What did sweep find?" in files[2].read_text(encoding="utf-8")
    assert f"wrote {files[0]}" in err
    status, _, err = call(capfd, "sweep", swept / "grid.toml", *kept, "--dry-run", "--plot", files[0])
    assert (status, "got --dry-run beside --plot" in " ".join(err.split())) == (2, True)


def test_the_table_shows_what_differs(swept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    status, out, _ = call(capfd, "sweep", swept / "grid.toml", "--store", swept / "runs")
    assert status == 0
    assert "rank" in out
    assert "feed" not in out
    assert "0 trained now" in out


def test_ctrl_c_saves_and_says_how_to_go_on(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "long.toml").write_text(GRID.replace("100", "300"))
    arguments = ("sweep", tmp_path / "long.toml", "--store", tmp_path / "runs", "--threads", 1, "--json")
    advance = Stack.advance
    with monkeypatch.context() as patched:
        patched.setattr(Stack, "advance", lambda self: (os.kill(os.getpid(), signal.SIGINT), advance(self))[1])
        status, out, err = call(capfd, *arguments)
    assert (status, out) == (130, "")
    assert "stopped with 0 of 3 cells finished and the rest saved; the same command goes on: rankfall sweep" in err
    status, out, _ = call(capfd, *arguments)
    assert (status, json.loads(out)["trained"]) == (0, 3)


def rows(capfd: pytest.CaptureFixture[str], home: Path, *arguments: object) -> list[dict[str, Any]]:
    status, out, _ = call(capfd, "runs", "--store", home / "runs", "--json", *arguments)
    assert status == 0
    found: list[dict[str, Any]] = json.loads(out)["rows"]
    return found


def test_runs_lists_filters_and_answers_sql(swept: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert len(rows(capfd, swept)) == 3
    assert [row["rank"] for row in rows(capfd, swept, "--where", "rank>1", "--where", "rank!=4")] == [2]
    query = "select rank, count(*) as n from runs join history using (id) group by rank order by rank"
    assert rows(capfd, swept, "--sql", query) == [{"rank": rank, "n": 1} for rank in (1, 2, 4)]


def test_runs_exports(swept: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    call(capfd, "runs", "--store", swept / "runs", "--where", "rank=2", "--csv", tmp_path / "two.csv")
    (line,) = csv.DictReader((tmp_path / "two.csv").read_text().splitlines())
    assert (line["rank"], line["status"]) == ("2", "done")
    call(capfd, "runs", "--store", swept / "runs", "--where", "rank<4", "--export-results", tmp_path / "results")
    _, out, err = call(capfd, "runs", "--store", tmp_path / "new", "--import", tmp_path / "results", "--json")
    assert {(row["rank"], row["source"]) for row in json.loads(out)["rows"]} == {(1, "imported"), (2, "imported")}
    assert "2 runs taken in" in err


def test_damage_is_reported_checked_and_set_aside(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call(capfd, "sweep", home / "grid.toml", "--store", tmp_path / "runs", "--threads", 1, "--json")
    store = Store(tmp_path / "runs")
    path = store.path / store.ids()[0] / "history.parquet"
    path.write_bytes(path.read_bytes()[:-5] + b"PAR1!")
    status, _, err = call(capfd, "runs", "--store", store.path, "--verify", "--json")
    assert status == 1
    assert "damaged: required" in err
    status, _, err = call(capfd, "sweep", home / "grid.toml", "--store", store.path, "--dry-run", "--json")
    assert (status, "another checksum" in err, path.exists()) == (0, True, True)
    status, out, err = call(capfd, "sweep", home / "grid.toml", "--store", store.path, "--threads", 1, "--json")
    assert (status, json.loads(out)["trained"]) == (0, 1)
    (line,) = [line for line in err.splitlines() if "another checksum" in line]
    assert f"required {path} " in line
    status, out, _ = call(capfd, "runs", "--store", store.path, "--verify", "--json")
    assert (status, len(json.loads(out)["rows"])) == (0, 3)


def test_a_run_without_a_readable_manifest_does_not_vanish(
    home: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    call(capfd, "sweep", home / "grid.toml", "--store", tmp_path / "runs", "--threads", 1, "--json")
    store = Store(tmp_path / "runs")
    path = store.path / store.ids()[0] / "manifest.json"
    path.write_bytes(path.read_bytes()[:20])
    for options in ((), ("--verify",)):
        status, out, err = call(capfd, "runs", "--store", store.path, *options, "--json")
        assert status == len(options)
        assert str(path) in err
        assert len(json.loads(out)["damaged"]) == 1
    status, out, err = call(capfd, "runs", "--store", store.path, "--set-aside", "--verify", "--json")
    assert (status, len(json.loads(out)["rows"])) == (0, 2)


def test_conditions_that_no_run_meets(capfd: pytest.CaptureFixture[str], swept: Path) -> None:
    status, out, err = call(capfd, "runs", "--store", swept / "runs", "--where", "rank=99", "--where", "seed=0")
    assert (status, out.strip()) == (0, "0 rows")
    assert " ".join(err.split()) == f"no run matches rank=99 and seed=0, of 3 in {swept}/runs"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("sweep", "{home}/none.toml"), "required a grid file"),
        (("sweep", "{home}/bad.toml"), "got the key rnk; did you mean rank?"),
        (("sweep", "{home}/grid.toml", "--store", "{home}/other"), "got version 9"),
        (("sweep", "{home}/grid.toml", "--store", "{home}/new", "--engine", "slurm"), "an engine among local"),
        (("sweep", "{home}/grid.toml", "--device", "abacus"), "a device: auto, cpu or cuda"),
        (("sweep", "{home}/grid.toml", "--max-stack", "0"), "max-stack to be a whole number of at least 1"),
        (
            ("sweep", "{home}/grid.toml", "--store", "{home}/new", "--memory", "0.00001"),
            "GiB on cpu to train the cell",
        ),
        (("runs", "--store", "{home}/nowhere"), "no such folder"),
        (("runs", "--store", "{home}/runs", "--sql", "selec 1"), "required SQL that DuckDB accepts"),
        (("runs", "--store", "{home}/runs", "--where", "colour=red"), "got colour; the columns are"),
        (
            ("runs", "--store", "{home}/runs", "--where", "rank=99", "--export-models", "{home}/models"),
            "that match rank=99; got none of the 3 in",
        ),
        (
            ("runs", "--store", "{home}/runs", "--where", "rank=99", "--export-results", "{home}/none"),
            "that match rank=99; got none of the 3 in",
        ),
        (("sweep", "smoke", "--text", "{home}/grid.toml"), "got smoke, which reads no text"),
        (("sweep", "smoke", "--validation", "{home}/grid.toml", "--dry-run"), "got smoke, which reads no text"),
        (("runs", "--store", "{home}/runs", "--where", "rank=1", "--sql", "select 1"), "either sql or where"),
    ],
)
def test_wrong_requests_get_one_line_and_status_two(
    swept: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], message: str
) -> None:
    (swept / "bad.toml").write_text("rnk = 4")
    (swept / "other").mkdir(exist_ok=True)
    (swept / "other" / "store.json").write_text('{"version": 9}')
    status, out, err = call(capfd, *(argument.format(home=swept) for argument in arguments))
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert message in err
