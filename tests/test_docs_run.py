"""What the documentation shows happens: its Python and its commands run, and give what the pages say they give.

Both run in a folder that has what the pages speak of, files named MODEL or FILE_OR_FOLDER among it.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.calls import call
from tests.models.real import needs
from tests.models.small import save_small, some_text
from tests.pages import DOCS, PAGES, ROOT, Shown, commands, named, python

import rankfall

# Pages whose Python other tests run, and look at more closely.
RUN_ELSEWHERE = {
    "docs/api.md": "tests/api/test_front_door.py",
    "docs/extending.md": "tests/test_extending.py",
    "docs/guide/monitor.md": "tests/models/test_monitor_guide.py",
}
# What is only compiled, or parsed with its values checked: what it matches, and why.
NOT_RUN = {
    r"head_cut=True": "a pass for every number of directions: 18 s",
    r"rankfall\.survey\(\)|survey( --all.*| --json)?$": "asks every class of the library, 5 s: tests/cli/test_survey.py does",
    r"\bsmollm2\b": "passes of a real decoder: a minute and more",
    r"audit$|audit minilm": "passes of a real encoder and its controls, 6 s and more: Python blocks audit it",
    r"org/name": "asks the hub",
    r"--engine ray": "starts a cluster, or looks for one",
    r"explore(?!.*--check)": "waits for whoever looks at the page",
    r"plan(?!.*--no-time)": "times real passes of every candidate",
    r"reproduce(?!.*--scale paper)": "computes or trains for minutes: tests/figures runs every figure, small",
    r"reproduce rankfall/text-rank": "137 audited models, 5 s: tests/figures reads them",
    r"sweep (?!smoke|grids/smoke|GRID)": "trains for minutes to days",
    r"coverage llama vit": "builds and audits both: tests/models/test_coverage.py does",
    r"--plot floors.png": "every rank, 4 s: tests/cli/test_bounds.py does",
}
PYTHON = [page for page in PAGES if python(page) and named(page) not in RUN_ELSEWHERE]
SHOWN: dict[str, list[Shown]] = {}
for page in (ROOT / "README.md", DOCS / "start.md", *sorted((DOCS / "guide").glob("*.md"))):
    for one in commands(page):
        if not one.mentioned:
            SHOWN.setdefault(one.line, []).append(one)

CHECKPOINTS = ("checkpoints/", "runs/checkpoint-")
VALUE = re.compile(r"(?P<number>-?\d*\.?\d+(?:e-?\d+)?)(?=[;,]|$)|(?P<text>'[^']*')$|(?P<made>[A-Z]\w+\(.*\))$")
DECIMAL = re.compile(r"(?<![\w.])\d+\.\d+(?![\w.])")


def why_not(text: str) -> str | None:
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, text)), None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts, models, grids, and a store of finished runs with a language model among them."""
    folder = tmp_path_factory.mktemp("home")
    shutil.copytree(ROOT / "grids", folder / "grids")
    shutil.copytree(ROOT / "results" / "amsel-fig1", folder / "results" / "amsel-fig1")
    verses = "\n\n".join(f"Verse {n}: sun and moon and {n % 9} stars over {n % 4} hills." for n in range(600))
    for name in ("book.txt", "FILE", "FILE_OR_FOLDER"):
        (folder / name).write_text(verses)
    for name in ("notes.txt", "mails.txt"):
        (folder / name).write_text(some_text(1200))
    (folder / "GRID.toml").write_text("dim = 4\npoints = 3\nfeed_forward = 4\nbatch = 4\nsteps = 100\nrank = [1, 2]\n")
    shutil.copy(folder / "grids" / "text-smoke.toml", folder / "GRID")
    rankfall.sweep("smoke", store=folder / "runs", threads=1)
    small = {"task": "text", "width": 32, "layers": 1, "heads": 2, "rank": 16, "context": 64, "batch": 2, "steps": 100}
    (folder / "text.toml").write_text("\n".join(f"{key} = {json.dumps(value)}" for key, value in small.items()))
    rankfall.sweep(folder / "text.toml", text=folder / "book.txt", store=folder / "runs", threads=1, audit=False)
    rankfall.runs(folder / "runs", where=["rank=16"], export_models=folder / "models")
    (exported,) = (folder / "models").iterdir()
    exported.rename(folder / "models" / "3b341c804660b7d8")
    start = rankfall.equilibrium(tokens=8, width=4, rank=3).record()
    (folder / "start.json").write_text(json.dumps(start))
    model = save_small(folder / "MODEL", "bert", max_position_embeddings=512, num_hidden_layers=2)
    for name in ("my-model", "A", "B", *(f"{base}{step}" for base in CHECKPOINTS for step in (1000, 20000))):
        shutil.copytree(model, folder / name)
    return folder


@pytest.fixture
def _at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(home)
    shutil.rmtree("report", ignore_errors=True)


@pytest.mark.usefixtures("_at_home", "_unchecked_axes")
@pytest.mark.parametrize("line", [pytest.param(line, id=line) for line in SHOWN if why_not(line) is None])
def test_commands_run_and_print_what_is_shown(line: str, capfd: pytest.CaptureFixture[str]) -> None:
    words = SHOWN[line][0].words
    status, out, err = call(capfd, *words)
    assert status in ((0, 1) if "--fail-if" in words else (0,)), err
    assert all(Path(name).exists() for option, name in pairwise(words) if option in ("--plot", "--out", "--csv"))
    printed = " ".join(out.split())
    for shown in SHOWN[line]:
        assert re.search(".*".join(re.escape(" ".join(text.split())) for text in shown.output), printed), out
        assert set(DECIMAL.findall(shown.comment)) <= set(re.findall(r"[\d.]+\d", printed)), out


@needs("minilm")
@pytest.mark.usefixtures("_at_home", "_unchecked_axes")
@pytest.mark.parametrize("page", PYTHON, ids=named)
def test_python_runs_and_gives_what_is_shown(page: Path) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    for block in python(page):
        if why_not(block) is None:
            for statement in ast.parse(block).body:
                run_statement(statement, block.splitlines()[statement.end_lineno - 1], names)


def run_statement(statement: ast.stmt, line: str, names: dict[str, Any]) -> None:
    """Run it; a value that stands behind an expression, or behind the printing of one, must be its value."""
    shown = VALUE.match(line.rpartition("  # ")[2]) if "  # " in line else None
    if not isinstance(statement, ast.Expr) or shown is None:
        exec(compile(ast.Module([statement], []), "page", "exec"), names)
        return
    value = eval(compile(ast.Expression(printed_value(statement.value)), "page", "eval"), names)
    assert agrees(value, shown), f"{line}: {value!r}"


def printed_value(expression: ast.expr) -> ast.expr:
    if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Name) and expression.func.id == "print":
        return expression.args[0]
    return expression


def agrees(value: Any, shown: re.Match[str]) -> bool:
    if shown["number"]:
        digits = len(shown["number"].partition(".")[2])
        return f"{value:.{digits}f}" == f"{float(shown['number']):.{digits}f}"
    pattern = ".*".join(map(re.escape, shown[0].split("...")))
    return re.fullmatch(pattern, repr(value)) is not None
