"""Training on a machine that has PyTorch and little else: sweep, export and going on from results."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from tests.training.conftest import GRID

ABSENT = ("duckdb", "plotly", "beartype", "gguf", "ray", "marimo", "matplotlib", "jinja2", "transformers", "mkdocs")
CALLS = """
import json, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

ABSENT = json.loads(sys.argv[1])
sys.meta_path.insert(0, Absent())
from rankfall.cli.main import run
for words in json.loads(sys.argv[2]):
    try:
        run(words)
    except SystemExit as ended:
        assert not ended.code, words
assert not [name for name in ABSENT if name in sys.modules]
"""


def test_a_sweep_needs_no_query_plotting_or_checking_library(tmp_path: Path) -> None:
    grid, store, results = tmp_path / "grid.toml", tmp_path / "runs", tmp_path / "results"
    grid.write_text(GRID)
    sweep = ["sweep", str(grid), "--threads", "1", "--json"]
    calls = [
        [*sweep, "--store", str(store), "--where", "rank=1,4"],
        ["runs", "--store", str(store), "--export-results", str(results), "--json"],
        [*sweep, "--store", str(tmp_path / "next"), "--results", str(results)],
    ]
    done = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(ABSENT), json.dumps(calls)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    first, _, second = map(json.loads, done.stdout.splitlines())
    assert [(row["rank"], row["status"]) for row in first["runs"]] == [(1, "done"), (4, "done")]
    assert (first["complete"], second["complete"]) == (True, True)
    assert [row["rank"] for row in second["runs"]] == [1, 2, 4]
    assert second["trained"] == 1, "the two others came from the results"


def test_language_models_are_audited_without_them_too(tmp_path: Path) -> None:
    """An audit needs transformers, and what PyTorch itself requires."""
    absent = [name for name in ABSENT if name not in ("transformers", "jinja2")]
    grid, book = tmp_path / "grid.toml", tmp_path / "book.txt"
    grid.write_text('task = "text"\nwidth = 8\nlayers = 1\nheads = 2\ncontext = 16\nbatch = 2\nsteps = 100\n')
    book.write_text("\n\n".join(f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(400)))
    sweep = ["sweep", str(grid), "--text", str(book), "--store", str(tmp_path / "runs"), "--threads", "1", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", CALLS, json.dumps(absent), json.dumps([sweep])], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(done.stdout)["audits"]
    assert row["missing"] is None
    assert row["head_rank_used"] > 1
